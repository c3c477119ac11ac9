/** Whether a process grows with the requests it has answered. */

import { quantile } from "../statistics/resampling.ts";

/** Memory after so many requests. */
export interface MemorySample {
  requests: number;
  bytes: number;
}

/** What a process may grow by. */
export interface GrowthBound {
  /** Bytes a request, beyond which a process that is used for days is in danger. */
  leak: number;
  /** Bytes that it may come to hold in a run of any length. */
  allowance: number;
}

/** Allocators keep room, and code that is run for the first time takes some. */
export const processBound: GrowthBound = { leak: 64, allowance: 8 * 2 ** 20 };
/** JavaScript's objects are counted to the byte: what a request leaves behind shows as the few bytes it is. */
export const heapBound: GrowthBound = { leak: 8, allowance: 2 ** 20 };

/**
 * After garbage collection: resident memory, less the room that V8 keeps for objects to come (it makes that larger at will),
 * and JavaScript's objects alone.
 */
export function heldBytes(): { process: number; heap: number } {
  globalThis.gc?.();
  const { rss, heapTotal, heapUsed } = process.memoryUsage();
  return { process: rss - (heapTotal - heapUsed), heap: heapUsed };
}

/** The share of the requests in which caches fill and code is run for the first time. */
const settling = 0.1;

/**
 * Bytes a request, of the samples after the first tenth of the requests: the median of the slopes of all pairs (Theil,
 * 1950; Sen, 1968), so that a few samples that lie apart do not decide it. At least two samples must be left.
 */
export function growthPerRequest(samples: readonly MemorySample[]): number {
  const last = samples.at(-1)!.requests;
  const settled = samples.filter(({ requests }) => requests > settling * last);
  const slopes = settled.flatMap((from, i) =>
    settled.slice(i + 1).map((to) => (to.bytes - from.bytes) / (to.requests - from.requests)),
  );
  return quantile(Float64Array.from(slopes).sort(), 0.5);
}

/** What growth may be over so many requests: few requests tell a leak from habits only where it is large. */
export function maxGrowth(requests: number, { leak, allowance }: GrowthBound): number {
  return Math.max(leak, allowance / ((1 - settling) * requests));
}
