/**
 * Generates for the endpoints: limits how many requests wait, cancels them, and converts their
 * options.
 */

import type { HttpBindings } from "@hono/node-server";
import type { Context } from "hono";
import type { GenerateOptions, GenerateRequest, Generation, WeightSet } from "../model/language-model.ts";
import type { Admission, ServedModel } from "./conversation-cache.ts";
import { clientOf } from "./fair-queue.ts";
import { GrammarQueue } from "./grammar-queue.ts";
import { type ChatRequest, type CompletionRequest, samplingOf } from "./protocol.ts";
import { badRequest, RequestError } from "./request-error.ts";
import { type Keys, requiresKey } from "./scopes.ts";
import type { OnToken } from "./text-stream.ts";
import { sizeOf, UnsentAnswers } from "./unsent-answers.ts";

/** Names the weights that wrote an answer, if they can change. */
export const versionHeader = "x-nlac-version";

/** Seconds after which a client that was refused should retry. */
const retryAfter = 1;

/** Maximum number of prompt tokens of a request, counted once for each completion. */
const maxPromptIds = 4_000_000;
/** Maximum number of alternatives to tokens that a request may ask for. */
const maxLogProbs = 20_000_000;
/** The same for all requests whose answers are not sent yet. */
const maxLogProbsHeld = 100_000_000;

interface QueueOptions extends Keys {
  learner: ServedModel;
  name: string;
  weights?: WeightSet;
  maxWaiting?: number;
  log?: (line: string) => void;
}

export class RequestQueue {
  readonly learner: ServedModel;
  readonly #options: QueueOptions;
  readonly #grammars = new GrammarQueue();
  readonly #unsent = new UnsentAnswers();
  /**
   * Running generations, each with the controller that cancels it. One controller for the server,
   * joined to each request's signal by AbortSignal.any, would hold a trace of every request for as
   * long as it lives.
   */
  readonly #answering = new Map<Promise<unknown>, AbortController>();
  #draining = false;
  /** Requests that run or wait, and the completions that they ask for. */
  #requests = 0;
  #texts = 0;
  /** Alternatives to tokens that these, and answers that are being sent, may have. */
  #logProbs = 0;
  /** Requests that wait for a change of the weights. */
  #entering = 0;
  /** Of all of these, the requests of each client. */
  readonly #ofClient = new Map<string, number>();
  #numbers = 0;

  constructor(options: QueueOptions) {
    this.#options = options;
    this.learner = options.learner;
  }

  readonly log = (line: string): void => this.#options.log?.(line);

  get draining(): boolean {
    return this.#draining;
  }

  /** Refuses new requests, and cancels after `graceMs` those that are still running. */
  async drain(graceMs: number): Promise<void> {
    this.#draining = true;
    const late = setTimeout(() => {
      for (const stop of this.#answering.values()) stop.abort();
    }, graceMs);
    await Promise.allSettled(this.#answering.keys());
    clearTimeout(late);
  }

  /**
   * Throws a RequestError of status 404 for any name but the served one, or that of a kept version.
   */
  checkModel(name: string): void {
    if (name === this.#options.name) return;
    const pinned = this.#versionIn(name);
    const stored = this.learner.versions?.();
    if (pinned !== undefined && stored?.includes(pinned)) return;
    const served = JSON.stringify(this.#options.name);
    throw new RequestError(
      404,
      pinned !== undefined && stored !== undefined
        ? `The version ${pinned} of ${served} is not stored. GET /v1/versions lists the stored ones.`
        : `This server has no model ${JSON.stringify(name)}; it serves ${served}.`,
      "model_not_found",
      "model",
    );
  }

  /**
   * Admits a request for `model`: its weights do not change until it leaves, and the answer's
   * header names their version. Throws a RequestError of status 429 if too many are waiting.
   */
  async admit(c: Context, model: string): Promise<Admission> {
    const { learner } = this.#options;
    if (learner.admit === undefined)
      return { generate: (...call) => learner.generate(...call), leave: () => {} };
    if (!this.#hasRoom(c, this.#requests + this.#entering, 1)) throw this.#full(c);
    this.#entering++;
    const uncount = this.#count(c);
    try {
      const admission = await learner.admit(this.#versionIn(model));
      if (admission.version !== undefined) c.header(versionHeader, admission.version);
      return admission;
    } finally {
      this.#entering--;
      uncount();
    }
  }

  /**
   * Whether so many more completions may run or wait, beside `held` ones. A client that has no
   * request gets one in also if the others fill the queue, unless too many did so.
   */
  #hasRoom(c: Context, held: number, more: number): boolean {
    const { maxWaiting = 256 } = this.#options;
    const isFirst = more === 1 && !this.#ofClient.has(this.#clientOf(c));
    return held + more <= maxWaiting + (isFirst ? Math.ceil(maxWaiting / 8) : 0);
  }

  /** A client: its address, and its API key if the server requires one. */
  #clientOf(c: Context): string {
    const key = requiresKey(this.#options) ? c.req.header("authorization") : undefined;
    return [clientOf(c)[0], key].join(" ");
  }

  /** Counts a request of a client until the returned function is called. */
  #count(c: Context): () => void {
    const key = this.#clientOf(c);
    this.#ofClient.set(key, (this.#ofClient.get(key) ?? 0) + 1);
    return () => {
      const left = this.#ofClient.get(key)! - 1;
      if (left > 0) this.#ofClient.set(key, left);
      else this.#ofClient.delete(key);
    };
  }

  /** The version of the name "NAME@VERSION". */
  #versionIn(name: string): string | undefined {
    const prefix = `${this.#options.name}@`;
    return name.startsWith(prefix) ? name.slice(prefix.length) : undefined;
  }

  #full(c: Context): RequestError {
    c.header("retry-after", String(retryAfter));
    const message = `${this.#texts + this.#entering} completions are in progress or waiting; come back later.`;
    return new RequestError(429, message, "queue_full");
  }

  /**
   * Generates all requests at once; the admission is left when they are done. Throws a RequestError
   * immediately: status 429 if too many are waiting, 400 if there could never be room for them, 503
   * if the server is stopping.
   */
  generate(
    c: Context,
    admission: Admission,
    requests: readonly GenerateRequest[],
    onToken?: OnToken,
  ): Promise<Generation[]> {
    const { weights = "online", maxWaiting = 256 } = this.#options;
    if (this.#draining) throw new RequestError(503, "The server is being stopped.", "stopping");
    if (requests.length > maxWaiting)
      throw badRequest(
        `${requests.length} completions were requested at once; ${maxWaiting} are the most.`,
        "n",
      );
    const logProbs = checkSizes(requests);
    // A large request must not lock out the small ones: one completion is refused only if as many
    // requests run or wait.
    const held = requests.length === 1 ? this.#requests : this.#texts;
    if (!this.#hasRoom(c, held, requests.length)) throw this.#full(c);
    if (logProbs > 0 && this.#logProbs + logProbs > maxLogProbsHeld) throw this.#full(c);
    const uncount = this.#count(c);
    this.#requests++;
    this.#texts += requests.length;
    const stop = new AbortController();
    const client = c.req.raw.signal;
    const leave = () => stop.abort();
    if (client.aborted) leave();
    else if (logProbs > 0) {
      this.#logProbs += logProbs;
      (c.env as HttpBindings).outgoing.once("close", () => (this.#logProbs -= logProbs));
    }
    client.addEventListener("abort", leave, { once: true });
    const weighed = requests.map((request) => ({ ...request, weights }));
    const generate = (options: GenerateOptions) =>
      admission.generate(weighed, { signal: stop.signal, ...options });
    const grammar = requests[0]?.grammar;
    const running =
      grammar === undefined
        ? generate(onToken ? { onToken } : {})
        : this.#grammars.run(grammar, clientOf(c), (compiled) =>
            generate({
              onToken(text, token) {
                compiled();
                onToken?.(text, token);
              },
            }),
          );
    const generation = running
      .then((generations) => {
        this.#unsent.hold((c.env as HttpBindings).outgoing, sizeOf(requests, generations));
        return generations;
      })
      .finally(() => {
        client.removeEventListener("abort", leave);
        admission.leave();
        this.#answering.delete(generation);
        uncount();
        this.#requests--;
        this.#texts -= requests.length;
      });
    this.#answering.set(generation, stop);
    return generation;
  }

  /** n requests for one prompt, each with its own random stream. */
  requests(
    request: ChatRequest | CompletionRequest,
    tokens: number[],
    longest: number | null | undefined,
    topLogProbs: number | null | undefined,
    first = 0,
  ) {
    const { maxPositions } = this.#options.learner;
    const room = maxPositions - tokens.length;
    return Array.from(
      { length: request.n ?? 1 },
      (_, i): GenerateRequest => ({
        tokens,
        ...samplingOf(request, Math.min(longest ?? room, room)),
        topLogProbs: topLogProbs ?? 0,
        ...(request.seed == null ? {} : { seed: seedOf(request.seed, first + i) }),
      }),
    );
  }

  /** The fields that every answer begins with. */
  head(prefix: string, object: string, { version }: Admission) {
    const number = String(this.#numbers++).padStart(8, "0");
    return {
      ...(version === undefined ? {} : { system_fingerprint: version }),
      id: `${prefix}-${number}`,
      object,
      created: Math.floor(Date.now() / 1000),
      model: this.#options.name,
    };
  }
}

/**
 * Throws a RequestError of status 400 for more ids, or more log probabilities, than fit into
 * memory. Returns the number of alternatives to tokens that are requested.
 */
function checkSizes(requests: readonly GenerateRequest[]): number {
  const total = (count: (request: GenerateRequest) => number) =>
    requests.reduce((sum, request) => sum + count(request), 0);
  const ids = total(({ tokens }) => tokens!.length);
  if (ids > maxPromptIds)
    throw badRequest(`The prompts of all completions have ${ids} tokens; ${maxPromptIds} are the most.`, "n");
  const logProbs = total(({ maxNewTokens, topLogProbs }) => (maxNewTokens ?? 0) * (topLogProbs ?? 0));
  if (logProbs > maxLogProbs)
    throw badRequest(
      `${logProbs} log probabilities could be returned; ${maxLogProbs} are the most. Set max_tokens.`,
      "max_tokens",
    );
  return logProbs;
}

/** The seed of completion i of a request with a seed; the first one's is the request's own. */
function seedOf(seed: number, i: number): bigint {
  return BigInt.asUintN(64, BigInt(seed) + BigInt(i) * 0x9e3779b97f4a7c15n);
}
