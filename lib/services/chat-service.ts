/**
 * Who plays a person of an environment (a user, an oracle, a judge, a buyer) or an episode itself, and the first who can: a
 * model behind OpenAI's API, or one compatible with it (vLLM, SGLang, llama.cpp, Ollama, `nlac serve`, …). The others are in
 * local.ts and recording.ts; open-service.ts opens any of them. Failures become ERR_SERVICE, so that they end
 * one episode, not a run; a budget that is spent is ERR_BUDGET, and ends the run.
 */

import OpenAI from "openai";
import { z } from "zod";
import { NlacError, throwIfAborted } from "../base/errors.ts";
import { checkConfig } from "../base/validation.ts";
import type { Message, Usage } from "../contract/environment.ts";
import { type Budget, checkBudget, Places } from "./limits.ts";
import { BrokenAnswer, withRetries } from "./retries.ts";

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
  /** Called, before the reply is there, where it was cut at its most tokens. */
  onCut?: () => void;
  signal?: AbortSignal;
}

/** What a reply depends on besides the messages. */
export type CompletionSettings = Pick<CompletionOptions, "maxTokens" | "temperature">;

export interface ChatService {
  readonly model: string;
  /** What `complete` takes where its options say nothing. Absent: unknown. */
  readonly defaults?: CompletionSettings;
  /** The reply's text, never empty. Throws ERR_SERVICE, ERR_BUDGET, and ERR_ABORTED when `signal` fires. */
  complete(messages: readonly Message[], options?: CompletionOptions): Promise<string>;
  /** What it was asked so far: attempts that failed or were given up too, as far as it is known what they took. */
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
  /** Most tokens of an answer; one that is longer is cut, and is an answer all the same. Default 512. */
  maxTokens?: number;
  /** Milliseconds that a whole answer may take, from when the request is sent. Default 30,000. */
  timeout?: number;
  /**
   * Further attempts after connection faults, timeouts, answers that are cut off or no answers, 408, 409, 429 and 5xx, with
   * growing pauses. Default 10, half a minute in all.
   */
  maxRetries?: number;
  /** Most requests under way at once; others wait, and go in the order in which they came. Default 64. */
  concurrency?: number;
  /** When it is spent, nothing more is asked: ERR_BUDGET. Requests that are under way then may go beyond it. Default: none. */
  budget?: Budget;
  /** US dollars for a million tokens. Without it `usage().cost` is 0. */
  price?: Price;
  /** Replaces `fetch`, for tests and proxies. */
  fetch?: typeof fetch;
}

/** Milliseconds: what a timer can wait. */
const maxTimeoutMs = 2 ** 31 - 1;

const optionsSchema = z.strictObject({
  model: z.string().min(1),
  baseURL: z.string().optional(),
  apiKey: z.string().optional(),
  temperature: z.number().nonnegative().default(0),
  maxTokens: z.int().positive().default(512),
  timeout: z.number().positive().max(maxTimeoutMs).default(30_000),
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

/** Opens a service; no request is made yet. Throws ERR_CONFIG for options that do not validate. */
export function chatService(options: ServiceOptions): ChatService {
  const { model, price, budget, timeout, maxRetries, fetch, ...given } = checkConfig(optionsSchema, options);
  const baseURL = given.baseURL ?? process.env.OPENAI_BASE_URL;
  const apiKey = given.apiKey ?? process.env.OPENAI_API_KEY ?? (baseURL === undefined ? undefined : "none");
  if (apiKey === undefined) {
    throw new NlacError(
      "ERR_CONFIG",
      "A service needs an apiKey or $OPENAI_API_KEY, or else the baseURL of a server.",
    );
  }
  if (budget.cost !== undefined && options.price === undefined)
    throw new NlacError("ERR_CONFIG", "A budget of money needs the price of tokens.");
  const defaults = { maxTokens: given.maxTokens, temperature: given.temperature };
  const used = { requests: 0, promptTokens: 0, completionTokens: 0 };
  const usage = () => ({
    ...used,
    cost: (used.promptTokens * price.prompt + used.completionTokens * price.completion) / 1e6,
  });
  const places = new Places(given.concurrency);
  const client = new OpenAI({
    apiKey,
    ...(baseURL === undefined ? {} : { baseURL }),
    // Its timeout ends where an answer begins, and its pauses cannot be broken off: see `withRetries` and `wholeAnswer`.
    maxRetries: 0,
    timeout: maxTimeoutMs,
    fetch,
  });

  /** One attempt. What it took is counted whatever becomes of it: an answer without text has been paid for too. */
  const ask = async (
    request: OpenAI.ChatCompletionCreateParamsNonStreaming,
    { onCut, signal }: CompletionOptions,
  ): Promise<string | undefined> => {
    checkBudget(model, budget, usage());
    used.requests++;
    const answer = await wholeAnswer(timeout, signal, (signal) =>
      client.chat.completions.create(request, { signal }),
    );
    used.promptTokens += answer?.usage?.prompt_tokens ?? 0;
    used.completionTokens += answer?.usage?.completion_tokens ?? 0;
    const text = textOf(answer);
    if (answer.usage == null && options.budget !== undefined)
      throw new NlacError(
        "ERR_BUDGET",
        `The service of ${model} does not say what an answer took, so that no budget of it can be kept.`,
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
        // Not every server knows it, so only where it matters; some take no more than 31 bits.
        ...(seed === undefined || sampling === 0 ? {} : { seed: seed % 2 ** 31 }),
      };
      const number = places.number();
      // A place is free again in the pauses between attempts.
      const attempt = () => places.within(number, signal, () => ask(request, options));
      let text: string | undefined;
      try {
        text = await withRetries(attempt, maxRetries, signal);
      } catch (error) {
        throwIfAborted(signal);
        if (error instanceof NlacError) throw error;
        throw new NlacError("ERR_SERVICE", `The service of ${model} failed: ${reason(error)}`, {
          cause: error,
        });
      }
      return replyOf(text, model);
    },
  };
}

/**
 * What `work` gives, if it does so in `timeout` milliseconds. The openai package's own timeout ends with an answer's headers;
 * a body may stand still for ever. Throws an APIConnectionTimeoutError, and a BrokenAnswer for a body that ends early.
 */
async function wholeAnswer<T>(
  timeout: number,
  signal: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const ending = new AbortController();
  const end = () => ending.abort();
  // A process that was busy for so long reads what has come meanwhile before it gives up.
  const timer = setTimeout(() => setImmediate(end), timeout);
  signal?.addEventListener("abort", end, { once: true });
  try {
    return await work(ending.signal);
  } catch (error) {
    if (ending.signal.aborted) throw new OpenAI.APIConnectionTimeoutError();
    if (error instanceof OpenAI.OpenAIError) throw error;
    throw new BrokenAnswer("its answer broke off.", { cause: error });
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
}

/** How vLLM, SGLang and OpenRouter mark a text whose writing was broken off. */
const brokenOff: readonly unknown[] = ["abort", "error"];

/**
 * The text of an answer that was written to its end, or up to `maxTokens`. Throws a BrokenAnswer for one that was not, and
 * ERR_SERVICE for one that holds no text and will not another time.
 */
function textOf(answer: OpenAI.ChatCompletion): string | undefined {
  const choice = answer?.choices?.[0];
  if (choice === undefined) throw new BrokenAnswer("its answer is no chat completion.");
  const { finish_reason: finish, message } = choice;
  if (!finish || brokenOff.includes(finish))
    throw new BrokenAnswer(`its reply was broken off (finish_reason ${JSON.stringify(finish ?? null)}).`);
  if (finish === "content_filter") throw new Error("its reply was withheld by a content filter.");
  const text = message?.content ?? undefined;
  if (finish === "length" && !text?.trim())
    throw new Error("its reply was cut before it said anything: maxTokens is too low for it.");
  return text;
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

/** What a reply says after a thinking model's thought; nothing where the thought was cut off. */
export function withoutThinking(text: string): string {
  return text.replace(/^[\s\S]*<\/think>|<think>[\s\S]*$/g, "").trim();
}

function reason(error: unknown): string {
  if (error instanceof OpenAI.APIConnectionTimeoutError) return "no answer in time.";
  if (error instanceof OpenAI.APIConnectionError) return "no connection.";
  if (error instanceof OpenAI.APIError) return `status ${error.status}: ${error.message}`;
  return error instanceof Error ? error.message : String(error);
}
