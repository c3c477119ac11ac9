/**
 * Chat services: an LLM that plays a person in an environment (a user, an oracle, a judge, a
 * buyer), or the agent. This file has services behind OpenAI's API or a compatible one (vLLM,
 * SGLang, llama.cpp, Ollama, `nlac serve`, …). local.ts and recording.ts have the others;
 * open-service.ts opens any of them. Failures become ERR_SERVICE, which ends one episode; a spent
 * budget is ERR_BUDGET, which ends the run.
 */

import type OpenAI from "openai";
import { z } from "zod";
import { NlacError, NotHere, throwIfAborted } from "../base/errors.ts";
import { maxDelayMs } from "../base/timer.ts";
import { checkConfig } from "../base/validation.ts";
import type { Message, Usage } from "../contract/environment.ts";
import { type Budget, checkBudget, Places } from "./limits.ts";
import type * as Requests from "./openai-requests.ts";

/** Settings of one completion. */
export interface CompletionOptions {
  /** Maximum tokens of the reply. Default: the service's own. */
  maxTokens?: number;
  /** Default: the service's own. */
  temperature?: number;
  /**
   * Seed of the reply if the temperature is above 0. Pass the episode's seed, so that episodes
   * differ but are reproducible. Ignored at temperature 0. Default: none.
   */
  seed?: number;
  /** Called before the reply is returned, if the reply was truncated at `maxTokens`. */
  onCut?: () => void;
  signal?: AbortSignal;
}

/** Settings that a reply depends on besides the messages. */
export type CompletionSettings = Pick<CompletionOptions, "maxTokens" | "temperature">;

/** A chat model that plays a person or a policy. */
export interface ChatService {
  readonly model: string;
  /** Settings that `complete` uses where its options have none. Absent if unknown. */
  readonly defaults?: CompletionSettings;
  /**
   * Returns the reply's text, never empty. Throws ERR_SERVICE, ERR_BUDGET, and ERR_ABORTED when
   * `signal` fires.
   */
  complete(messages: readonly Message[], options?: CompletionOptions): Promise<string>;
  /**
   * Usage so far, including attempts that failed or were given up as far as their usage is known.
   */
  usage(): Usage;
  /** Frees resources; later requests throw ERR_DISPOSED. Absent if there are none. */
  close?(): Promise<void>;
}

/** US dollars per million tokens of prompts and of replies. */
export interface Price {
  prompt: number;
  completion: number;
}

/** A model behind OpenAI's API. */
export interface ServiceOptions {
  /** Name of the model at the service. */
  model: string;
  /** Default: `$OPENAI_BASE_URL`, else OpenAI's own. */
  baseURL?: string;
  /** Default: `$OPENAI_API_KEY`. Not needed by most local servers. */
  apiKey?: string;
  /** Sampling temperature. Default 0. */
  temperature?: number;
  /** Maximum tokens of a reply; a longer one is truncated but still used. Default 512. */
  maxTokens?: number;
  /**
   * Timeout for a complete reply, in milliseconds from when the request is sent. Default 30,000.
   */
  timeout?: number;
  /**
   * Retries after connection errors, timeouts, incomplete or missing replies, 408, 409, 429 and
   * 5xx, with growing pauses. Default 10, half a minute in all.
   */
  maxRetries?: number;
  /** Maximum concurrent requests; others wait in order of arrival. Default 64. */
  concurrency?: number;
  /**
   * Once it is spent, further requests throw ERR_BUDGET. Requests in flight at that time may exceed
   * it. Default: none.
   */
  budget?: Budget;
  /** US dollars per million tokens. Without it `usage().cost` is 0. */
  price?: Price;
  /** Replaces `fetch`, for tests and proxies. */
  fetch?: typeof fetch;
}

const optionsSchema = z.strictObject({
  model: z.string().min(1),
  baseURL: z.string().optional(),
  apiKey: z.string().min(1).optional(),
  temperature: z.number().nonnegative().default(0),
  maxTokens: z.int().positive().default(512),
  timeout: z.number().positive().max(maxDelayMs).default(30_000),
  maxRetries: z.int().nonnegative().default(10),
  concurrency: z.int().positive().default(64),
  budget: z
    .strictObject({ tokens: z.number().positive().optional(), cost: z.number().positive().optional() })
    .default({}),
  price: z
    .strictObject({ prompt: z.number().nonnegative(), completion: z.number().nonnegative() })
    .default({ prompt: 0, completion: 0 }),
  fetch: z.custom<typeof fetch>((value) => typeof value === "function").default(() => fetch),
});

let importing: Promise<typeof Requests> | undefined;

/**
 * What the first request imports. Once: jiti, through which tests run lib/, cannot import a module
 * twice at the same time.
 */
function openaiRequests(): Promise<typeof Requests> {
  importing ??= import("./openai-requests.ts");
  return importing;
}

/** An environment variable; undefined also if it is empty, as for OpenAI's own clients. */
function variable(name: string): string | undefined {
  return process.env[name] || undefined;
}

/** Creates a service without sending a request. Throws ERR_CONFIG for invalid options. */
export function chatService(options: ServiceOptions): ChatService {
  const { model, price, budget, timeout, maxRetries, fetch, ...given } = checkConfig(optionsSchema, options);
  const baseURL = given.baseURL ?? variable("OPENAI_BASE_URL");
  const apiKey = given.apiKey ?? variable("OPENAI_API_KEY") ?? (baseURL === undefined ? undefined : "none");
  if (apiKey === undefined) {
    throw new NotHere(
      "A service needs a key or an address: set $OPENAI_API_KEY (apiKey), or $OPENAI_BASE_URL (baseURL) of a server " +
        "that needs no key.",
    );
  }
  if (baseURL !== undefined && !/^https?:\/\/./.test(baseURL))
    throw new NlacError(
      "ERR_CONFIG",
      `${given.baseURL === undefined ? "$OPENAI_BASE_URL" : "baseURL"} must be an http:// or https:// address, not ${JSON.stringify(baseURL)}.`,
    );
  if (budget.cost !== undefined && options.price === undefined)
    throw new NlacError("ERR_CONFIG", "A budget in US dollars needs the price of tokens.");
  const defaults = { maxTokens: given.maxTokens, temperature: given.temperature };
  const used = { requests: 0, promptTokens: 0, completionTokens: 0 };
  const usage = () => ({
    ...used,
    cost: (used.promptTokens * price.prompt + used.completionTokens * price.completion) / 1e6,
  });
  const places = new Places(given.concurrency);
  let client: OpenAI | undefined;

  /** One attempt. Its usage is counted even if it fails: a reply without text costs money too. */
  const ask = async (
    { connect, textOf, wholeAnswer }: typeof Requests,
    request: OpenAI.ChatCompletionCreateParamsNonStreaming,
    { onCut, signal }: CompletionOptions,
  ): Promise<string | undefined> => {
    checkBudget(model, budget, usage());
    used.requests++;
    client ??= connect({ apiKey, baseURL, fetch });
    const { completions } = client.chat;
    const answer = await wholeAnswer(timeout, signal, (signal) => completions.create(request, { signal }));
    used.promptTokens += answer?.usage?.prompt_tokens ?? 0;
    used.completionTokens += answer?.usage?.completion_tokens ?? 0;
    const text = textOf(answer);
    if (answer.usage == null && options.budget !== undefined)
      throw new NlacError(
        "ERR_BUDGET",
        `The service of ${model} does not report token usage, so its budget cannot be enforced.`,
      );
    if (answer.choices[0]!.finish_reason === "length") onCut?.();
    return text;
  };

  return {
    model,
    defaults,
    usage,
    async complete(messages, options = {}) {
      const { maxTokens, temperature, seed, signal } = options;
      throwIfAborted(signal);
      const sampling = temperature ?? defaults.temperature;
      const request = {
        model,
        messages: messages.map(asHeard),
        temperature: sampling,
        max_tokens: maxTokens ?? defaults.maxTokens,
        // Not every server supports a seed, so it is sent only if it has an effect. Some accept
        // only 31 bits.
        ...(seed === undefined || sampling === 0 ? {} : { seed: seed % 2 ** 31 }),
      };
      const number = places.number();
      const requests = await openaiRequests();
      // An attempt frees its place during the pauses between attempts.
      const attempt = () => places.within(number, signal, () => ask(requests, request, options));
      let text: string | undefined;
      try {
        text = await requests.withRetries(attempt, maxRetries, signal);
      } catch (error) {
        throwIfAborted(signal);
        if (error instanceof NlacError) throw error;
        throw new NlacError("ERR_SERVICE", `The service of ${model} failed: ${requests.reason(error)}`, {
          cause: error,
        });
      }
      return replyOf(text, model);
    },
  };
}

/**
 * Converts a message for a service: a tool's result becomes a quotation, since the model at the
 * service made no call.
 */
export function asHeard({ role, content }: Message): {
  role: "system" | "user" | "assistant";
  content: string;
} {
  return { role: role === "tool" ? "user" : role, content };
}

/** A reply's trimmed text. Throws ERR_SERVICE if nothing remains. */
export function replyOf(text: unknown, model: string): string {
  if (typeof text !== "string" || text.trim() === "") {
    throw new NlacError("ERR_SERVICE", `The service of ${model} gave an empty reply.`);
  }
  return text.trim();
}

/** A reply without a reasoning model's thought; empty if the thought was cut off. */
export function withoutThinking(text: string): string {
  return text.replace(/^[\s\S]*<\/think>|<think>[\s\S]*$/g, "").trim();
}
