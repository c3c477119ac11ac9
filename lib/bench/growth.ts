/** Measures whether a process's memory grows with the number of requests. */

import { quantile } from "../statistics/resampling.ts";

/** Memory after a number of requests. */
export interface MemorySample {
  requests: number;
  bytes: number;
}

/** Limits of growth. */
export interface GrowthBound {
  /** Maximum bytes per request for a process that runs for days. */
  leak: number;
  /** Maximum total growth in bytes, in a run of any length. */
  allowance: number;
}

/** Allocators hold free memory, and code that runs for the first time needs some. */
export const processBound: GrowthBound = { leak: 64, allowance: 8 * 2 ** 20 };
/** JavaScript's heap is counted exactly: even a few bytes per request are visible. */
export const heapBound: GrowthBound = { leak: 8, allowance: 2 ** 20 };

/**
 * Memory after garbage collection: resident memory without V8's free heap, which it resizes at
 * will, and the JavaScript heap in use.
 */
export function heldBytes(): { process: number; heap: number } {
  globalThis.gc?.();
  const { rss, heapTotal, heapUsed } = process.memoryUsage();
  return { process: rss - (heapTotal - heapUsed), heap: heapUsed };
}

/** Share of the requests in which caches fill and code runs for the first time. */
const settling = 0.1;

/**
 * Growth in bytes per request, without the first tenth of the requests: the median slope of all
 * pairs of samples (Theil, 1950; Sen, 1968), which is robust against outliers. Needs two samples.
 */
export function growthPerRequest(samples: readonly MemorySample[]): number {
  const last = samples.at(-1)!.requests;
  const settled = samples.filter(({ requests }) => requests > settling * last);
  const slopes = settled.flatMap((from, i) =>
    settled.slice(i + 1).map((to) => (to.bytes - from.bytes) / (to.requests - from.requests)),
  );
  return quantile(Float64Array.from(slopes).sort(), 0.5);
}

/** The limit for this number of requests: with few requests only a large growth is significant. */
export function maxGrowth(requests: number, { leak, allowance }: GrowthBound): number {
  return Math.max(leak, allowance / ((1 - settling) * requests));
}
