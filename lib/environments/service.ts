/**
 * Who plays a person of an environment (a user, an oracle, a judge, a buyer), and the first who can: a model behind
 * OpenAI's API, or one compatible with it (vLLM, llama.cpp, Ollama, …). The others are in service-local.ts and
 * service-recording.ts; services.ts opens any of them. Failures become ERR_SERVICE, so that they end one episode, not
 * a run.
 */

import OpenAI from "openai";
import { z } from "zod";
import { checkConfig } from "../checks.ts";
import { NlacError, throwIfAborted } from "../errors.ts";
import type { Message, Usage } from "./contract.ts";

export interface CompletionOptions {
  /** Most tokens of the reply. Default: the service's own. */
  maxTokens?: number;
  /** Default: the service's own. */
  temperature?: number;
  /**
   * Tells one reply from another to the same messages, where a temperature above 0 makes them differ: give the episode's
   * seed, so that episodes differ and yet repeat. A reply of temperature 0 does not depend on it. Default: none.
   */
  seed?: number;
  signal?: AbortSignal;
}

/** What a reply depends on besides the messages. */
export type CompletionSettings = Pick<CompletionOptions, "maxTokens" | "temperature">;

export interface ChatService {
  readonly model: string;
  /** What `complete` takes where its options say nothing. Absent: unknown. */
  readonly defaults?: CompletionSettings;
  /** The reply's text, never empty. Throws ERR_SERVICE, and ERR_ABORTED when `signal` fires. */
  complete(messages: readonly Message[], options?: CompletionOptions): Promise<string>;
  /** What it was asked so far: requests that failed and further attempts too, as far as it is known what they took. */
  usage(): Usage;
  /** Gives back what it holds; a request after that throws ERR_DISPOSED. Absent: it holds nothing. */
  close?(): Promise<void>;
}

/** US dollars for a million tokens of prompts and of replies. */
export interface Price {
  prompt: number;
  completion: number;
}

export interface ServiceOptions {
  /** Name of the model at the service. */
  model: string;
  /** Default: `$OPENAI_BASE_URL`, else OpenAI's own. */
  baseURL?: string;
  /** Default: `$OPENAI_API_KEY`. Not needed by most local servers. */
  apiKey?: string;
  /** Sampling temperature. Default 0. */
  temperature?: number;
  /** Most tokens of an answer. Default 512. */
  maxTokens?: number;
  /** Milliseconds until a request counts as failed. Default 30,000. */
  timeout?: number;
  /** Further attempts after connection faults, timeouts, 408, 409, 429 and 5xx, with growing pauses. Default 3. */
  maxRetries?: number;
  /** US dollars for a million tokens. Without it `usage().cost` is 0. */
  price?: Price;
  /** Replaces `fetch`, for tests and proxies. */
  fetch?: typeof fetch;
}

const optionsSchema = z.strictObject({
  model: z.string().min(1),
  baseURL: z.string().optional(),
  apiKey: z.string().optional(),
  temperature: z.number().nonnegative().default(0),
  maxTokens: z.int().positive().default(512),
  timeout: z.number().positive().default(30_000),
  maxRetries: z.int().nonnegative().default(3),
  price: z
    .strictObject({ prompt: z.number().nonnegative(), completion: z.number().nonnegative() })
    .default({ prompt: 0, completion: 0 }),
  fetch: z.custom<typeof fetch>((value) => typeof value === "function").default(() => fetch),
});

/** Opens a service; no request is made yet. Throws ERR_CONFIG for options that do not validate. */
export function chatService(options: ServiceOptions): ChatService {
  const { model, price, timeout, maxRetries, fetch, ...given } = checkConfig(optionsSchema, options);
  const baseURL = given.baseURL ?? process.env.OPENAI_BASE_URL;
  const apiKey = given.apiKey ?? process.env.OPENAI_API_KEY ?? (baseURL === undefined ? undefined : "none");
  if (apiKey === undefined) {
    throw new NlacError(
      "ERR_CONFIG",
      "service: give an apiKey or set OPENAI_API_KEY (or give the baseURL of a server).",
    );
  }
  const defaults = { maxTokens: given.maxTokens, temperature: given.temperature };
  const used = { requests: 0, promptTokens: 0, completionTokens: 0 };
  const client = new OpenAI({
    apiKey,
    ...(baseURL === undefined ? {} : { baseURL }),
    timeout,
    maxRetries,
    // Every attempt passes here, those that the client repeats too.
    fetch: (...call) => {
      used.requests++;
      return fetch(...call);
    },
  });
  return {
    model,
    defaults,
    usage: () => ({
      ...used,
      cost: (used.promptTokens * price.prompt + used.completionTokens * price.completion) / 1e6,
    }),
    async complete(messages, { maxTokens, temperature, seed, signal } = {}) {
      throwIfAborted(signal);
      const sampling = temperature ?? defaults.temperature;
      let text: string | null | undefined;
      try {
        const completion = await client.chat.completions.create(
          {
            model,
            messages: messages.map(asHeard),
            temperature: sampling,
            max_tokens: maxTokens ?? defaults.maxTokens,
            // Not every server knows it, so only where it matters; some take no more than 31 bits.
            ...(seed === undefined || sampling === 0 ? {} : { seed: seed % 2 ** 31 }),
          },
          { signal },
        );
        // An answer without text has been paid for too.
        used.promptTokens += completion.usage?.prompt_tokens ?? 0;
        used.completionTokens += completion.usage?.completion_tokens ?? 0;
        text = completion.choices?.[0]?.message?.content;
      } catch (error) {
        throwIfAborted(signal);
        throw new NlacError("ERR_SERVICE", `The service of ${model} failed: ${reason(error)}`, {
          cause: error,
        });
      }
      return replyOf(text, model);
    },
  };
}

/** The message as a service takes it: a tool's answer is a quotation to a model that has made no call. */
export function asHeard({ role, content }: Message): {
  role: "system" | "user" | "assistant";
  content: string;
} {
  return { role: role === "tool" ? "user" : role, content };
}

/** A reply's text without the blanks around it. Throws ERR_SERVICE where nothing is left. */
export function replyOf(text: unknown, model: string): string {
  if (typeof text !== "string" || text.trim() === "") {
    throw new NlacError("ERR_SERVICE", `The service of ${model} gave an empty reply.`);
  }
  return text.trim();
}

function reason(error: unknown): string {
  if (error instanceof OpenAI.APIConnectionTimeoutError) return "no answer in time.";
  if (error instanceof OpenAI.APIConnectionError) return "no connection.";
  if (error instanceof OpenAI.APIError) return `status ${error.status}: ${error.message}`;
  return error instanceof Error ? error.message : String(error);
}
