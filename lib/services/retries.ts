/**
 * Retries requests to a service. Transient failures (a full queue, a server restart, an incomplete
 * reply) are waited out with growing pauses. Pauses are random, so that clients that failed
 * together do not retry together; they do not affect replies.
 */

import { setTimeout as sleep } from "node:timers/promises";
import OpenAI from "openai";

/**
 * A pause is drawn from 0 to a bound in milliseconds, which starts at the first value and doubles
 * up to the second.
 */
const firstBound = 500;
const maxBackoffMs = 8000;
/**
 * Longest Retry-After that is honoured, in milliseconds; with a longer one the request is not
 * retried.
 */
const maxWaitMs = 5 * 60_000;

/** A reply that arrived incomplete; a retry may get a complete one. */
export class BrokenAnswer extends Error {}

/**
 * Returns the first reply of `attempt`, retried after transient failures at most `maxRetries` times
 * and not before a server's Retry-After.
 *
 * @throws the last attempt's error; an AbortError when `signal` fires in a pause
 */
export async function withRetries<T>(
  attempt: () => Promise<T>,
  maxRetries: number,
  signal: AbortSignal | undefined,
): Promise<T> {
  for (let retry = 0; ; retry++) {
    try {
      return await attempt();
    } catch (error) {
      const asked = waitAskedFor(error);
      if (retry === maxRetries || !mayPass(error) || asked > maxWaitMs) throw error;
      const bound = Math.min(firstBound * 2 ** retry, maxBackoffMs);
      await sleep(asked + Math.random() * bound, undefined, { signal });
    }
  }
}

/**
 * Connection errors and timeouts, incomplete replies, and the statuses 408, 409, 429 and 5xx,
 * unless the server says otherwise.
 */
function mayPass(error: unknown): boolean {
  if (error instanceof BrokenAnswer || error instanceof OpenAI.APIConnectionError) return true;
  if (!(error instanceof OpenAI.APIError)) return false;
  // OpenAI's own clients obey this header too: an exhausted quota is also a 429, but not transient.
  const advice = error.headers?.get("x-should-retry");
  if (advice === "true" || advice === "false") return advice === "true";
  return [408, 409, 429].includes(error.status) || error.status >= 500;
}

/**
 * The requested wait in milliseconds, 0 if none: from Retry-After (seconds or a date) or OpenAI's
 * finer retry-after-ms.
 */
function waitAskedFor(error: unknown): number {
  const headers = error instanceof OpenAI.APIError ? error.headers : undefined;
  const fine = Number.parseFloat(headers?.get("retry-after-ms") ?? "");
  if (fine >= 0) return fine;
  const after = headers?.get("retry-after") ?? "";
  // A date is on the server's clock, which this machine's may differ from.
  const now = Date.parse(headers?.get("date") ?? "") || Date.now();
  const wait = /^\s*[\d.]+\s*$/.test(after) ? Number(after) * 1000 : Date.parse(after) - now;
  return wait > 0 ? wait : 0;
}
