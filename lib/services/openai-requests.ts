/**
 * Requests to a service through the openai package. This file is imported with the first request:
 * loading the package takes 0.2 s, which no other command should wait for.
 */

import OpenAI from "openai";
import { messageOf } from "../base/errors.ts";
import { maxDelayMs } from "../base/timer.ts";
import { BrokenAnswer } from "./retries.ts";

export { withRetries } from "./retries.ts";

/** A client that neither retries nor times out: see `withRetries` and `wholeAnswer`. */
export function connect({
  apiKey,
  baseURL,
  fetch,
}: {
  apiKey: string;
  baseURL: string | undefined;
  fetch: typeof globalThis.fetch;
}): OpenAI {
  const address = baseURL === undefined ? {} : { baseURL };
  // Its own timeout ends at the response headers, and its pauses cannot be aborted.
  return new OpenAI({ apiKey, ...address, maxRetries: 0, timeout: maxDelayMs, fetch });
}

/**
 * Returns what `work` resolves to within `timeout` milliseconds. The openai package's own timeout
 * ends at the response headers, and the body could then stall forever. Throws an
 * APIConnectionTimeoutError, and a BrokenAnswer for a body that ends early.
 */
export async function wholeAnswer<T>(
  timeout: number,
  signal: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const ending = new AbortController();
  const end = () => ending.abort();
  // After a long block of the event loop, data that has already arrived is read before the timeout
  // fires.
  const timer = setTimeout(() => setImmediate(end), timeout);
  signal?.addEventListener("abort", end, { once: true });
  try {
    return await work(ending.signal);
  } catch (error) {
    if (ending.signal.aborted) throw new OpenAI.APIConnectionTimeoutError();
    if (error instanceof OpenAI.OpenAIError) throw error;
    throw new BrokenAnswer("its reply broke off.", { cause: error });
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
}

/** Finish reasons of vLLM, SGLang and OpenRouter for an aborted generation. */
const brokenOff: readonly unknown[] = ["abort", "error"];

/**
 * The text of a reply that is complete or was truncated at `maxTokens`. Throws a BrokenAnswer for
 * an incomplete one, which may be retried, and ERR_SERVICE for one without text, which may not.
 */
export function textOf(answer: OpenAI.ChatCompletion): string | undefined {
  const choice = answer?.choices?.[0];
  if (choice === undefined) throw new BrokenAnswer("its reply is not a chat completion.");
  const { finish_reason: finish, message } = choice;
  if (!finish || brokenOff.includes(finish))
    throw new BrokenAnswer(`its reply was broken off (finish_reason ${JSON.stringify(finish ?? null)}).`);
  if (finish === "content_filter") throw new Error("its reply was withheld by a content filter.");
  const text = message?.content ?? undefined;
  if (finish === "length" && !text?.trim())
    throw new Error("its reply was truncated before it contained any text: maxTokens is too low.");
  return text;
}

/** Why a request failed, as a sentence. */
export function reason(error: unknown): string {
  if (error instanceof OpenAI.APIConnectionTimeoutError) return "no answer in time.";
  if (error instanceof OpenAI.APIConnectionError)
    return `no connection (${messageOf(error.cause ?? error).replace(/^fetch failed: /, "")}).`;
  if (error instanceof OpenAI.APIError) return `status ${error.status}: ${error.message}`;
  return messageOf(error);
}
