/**
 * How a request to a service is made again: what passes (a full queue, a server that is being restarted, an answer that was
 * cut off) is waited out, a little longer every time. The pauses are drawn, so that many who failed together do not come
 * back together; they change nothing about a reply.
 */

import { setTimeout as sleep } from "node:timers/promises";
import OpenAI from "openai";

/** Milliseconds: a pause is drawn from 0 to a bound, which begins as the first, doubles and stays at the second. */
const firstBound = 500;
const maxBackoffMs = 8000;
/** Milliseconds that a server may ask to be left alone for; one that asks for more is not asked again. */
const maxWaitMs = 5 * 60_000;

/** An answer that came, but broken: another attempt may bring a whole one. */
export class BrokenAnswer extends Error {}

/**
 * The first answer of `attempt`, which is made again after a fault that may pass, `maxRetries` times at most. A server that
 * says when it wants to be asked again (Retry-After) is not asked before.
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

/** Connection faults and timeouts, broken answers, and the statuses 408, 409, 429 and 5xx, unless the server says otherwise. */
function mayPass(error: unknown): boolean {
  if (error instanceof BrokenAnswer || error instanceof OpenAI.APIConnectionError) return true;
  if (!(error instanceof OpenAI.APIError)) return false;
  // What OpenAI's own clients go by: a quota that is used up is 429 too, but does not pass.
  const advice = error.headers?.get("x-should-retry");
  if (advice === "true" || advice === "false") return advice === "true";
  return [408, 409, 429].includes(error.status) || error.status >= 500;
}

/** Milliseconds, 0 where nothing is asked: of Retry-After, in seconds or as a date, or of OpenAI's finer retry-after-ms. */
function waitAskedFor(error: unknown): number {
  const headers = error instanceof OpenAI.APIError ? error.headers : undefined;
  const fine = Number.parseFloat(headers?.get("retry-after-ms") ?? "");
  if (fine >= 0) return fine;
  const after = headers?.get("retry-after") ?? "";
  const wait = /^\s*[\d.]+\s*$/.test(after) ? Number(after) * 1000 : Date.parse(after) - Date.now();
  return wait > 0 ? wait : 0;
}
