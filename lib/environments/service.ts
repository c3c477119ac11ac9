/**
 * A chat service behind OpenAI's API, or one compatible with it (vLLM, llama.cpp, Ollama, …): it plays the
 * person or the judge of an environment. Failures become ERR_SERVICE, so that they end one episode, not a run.
 */

import OpenAI from "openai";
import { NlacError, throwIfAborted } from "../errors.ts";
import type { Message } from "./contract.ts";

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
  /** Replaces `fetch`, for tests and proxies. */
  fetch?: typeof fetch;
}

export interface CompletionOptions {
  maxTokens?: number;
  /** In place of the service's own. */
  temperature?: number;
  signal?: AbortSignal;
}

export interface ChatService {
  readonly model: string;
  /** The reply's text. Throws ERR_SERVICE, and ERR_ABORTED when `signal` fires. */
  complete(messages: readonly Message[], options?: CompletionOptions): Promise<string>;
}

const known = new Set("model baseURL apiKey temperature maxTokens timeout maxRetries fetch".split(" "));

/** Opens a service; no request is made yet. Throws ERR_CONFIG for options that do not validate. */
export function chatService(options: ServiceOptions): ChatService {
  for (const key of Object.keys(options)) {
    if (!known.has(key)) throw new NlacError("ERR_CONFIG", `service: there is no option "${key}".`);
  }
  if (typeof options.model !== "string" || options.model === "") {
    throw new NlacError("ERR_CONFIG", "service: model must name the model to use.");
  }
  const baseURL = options.baseURL ?? process.env.OPENAI_BASE_URL;
  const apiKey = options.apiKey ?? process.env.OPENAI_API_KEY ?? (baseURL === undefined ? undefined : "none");
  if (apiKey === undefined) {
    throw new NlacError(
      "ERR_CONFIG",
      "service: give an apiKey or set OPENAI_API_KEY (or give the baseURL of a server).",
    );
  }
  const client = new OpenAI({
    apiKey,
    ...(baseURL === undefined ? {} : { baseURL }),
    timeout: options.timeout ?? 30_000,
    maxRetries: options.maxRetries ?? 3,
    ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
  });
  return {
    model: options.model,
    async complete(messages, { maxTokens, temperature, signal } = {}) {
      throwIfAborted(signal);
      let text: string | null | undefined;
      try {
        const completion = await client.chat.completions.create(
          {
            model: options.model,
            // A tool's answer reaches another model as a quotation: it has made no call that could be answered.
            messages: messages.map(({ role, content }) => ({
              role: role === "tool" ? "user" : role,
              content,
            })),
            temperature: temperature ?? options.temperature ?? 0,
            max_tokens: maxTokens ?? options.maxTokens ?? 512,
          },
          { signal },
        );
        text = completion.choices?.[0]?.message?.content;
      } catch (error) {
        throwIfAborted(signal);
        throw new NlacError("ERR_SERVICE", `The service of ${options.model} failed: ${reason(error)}`, {
          cause: error,
        });
      }
      if (typeof text !== "string" || text.trim() === "") {
        throw new NlacError("ERR_SERVICE", `The service of ${options.model} gave an empty reply.`);
      }
      return text.trim();
    },
  };
}

function reason(error: unknown): string {
  if (error instanceof OpenAI.APIConnectionTimeoutError) return "no answer in time.";
  if (error instanceof OpenAI.APIConnectionError) return "no connection.";
  if (error instanceof OpenAI.APIError) return `status ${error.status}: ${error.message}`;
  return error instanceof Error ? error.message : String(error);
}
