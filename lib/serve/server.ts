/**
 * A model behind OpenAI's API: agents that were written for an endpoint play, and are recorded, without being rewritten.
 *
 *   GET  /v1/models, /health
 *   POST /v1/chat/completions, /v1/completions
 *   POST /v1/episodes/{id}/reward              with a recording
 *
 * Requests are generated together; beyond `maxWaiting` texts a client is asked to come back.
 */

import { createHash, timingSafeEqual } from "node:crypto";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { type ServerType, serve as serveHttp } from "@hono/node-server";
import { type Context, Hono } from "hono";
import { bodyLimit } from "hono/body-limit";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import type { ToolSchema } from "../contract/environment.ts";
import { type Grammar, grammarText } from "../model/grammar.ts";
import type { GenerateRequest, Generation, WeightSet } from "../model/language-model.ts";
import { type CallForm, callGrammar } from "../prompts/calls.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { chatChoice, completionChoice, replyOf, usage } from "./answers.ts";
import { Conversations, nameAfter, namesOf, type ServedModel } from "./conversation-cache.ts";
import { Episodes } from "./episodes.ts";
import {
  asRequestError,
  badRequest,
  type ChatRequest,
  type CompletionRequest,
  chatRequest,
  completionRequest,
  formatOf,
  mayCall,
  mustCall,
  RequestError,
  readRequest,
  saidIn,
  samplingOf,
  toolsIn,
} from "./protocol.ts";
import { type OnToken, streamTexts } from "./text-stream.ts";

export interface ServeOptions {
  learner: ServedModel;
  /** What clients call the model. */
  name: string;
  /** Default "127.0.0.1": this machine alone. Any other address needs a `token`. */
  host?: string;
  /** Default 8000; 0 takes a free one. */
  port?: number;
  /** What clients must send as their API key. */
  token?: string;
  weights?: WeightSet;
  /** Texts being written or waiting, beyond which a request is answered with 429. Default 256. */
  maxWaiting?: number;
  /** A file to which rewarded episodes are appended. */
  record?: string;
  /** Ids that remembered conversations may have together, and those of open episodes. Default 4,000,000. */
  maxHeldTokens?: number;
  /** Called for what an operator should know. */
  log?: (line: string) => void;
}

export interface Server {
  /** http://host:port */
  url: string;
  /** Episodes written so far. */
  readonly recorded: number;
  /**
   * Writes nothing new, finishes what is being answered, or breaks it off after `graceMs` milliseconds, default 30,000, and
   * takes the rewards of open episodes until `graceMs` after the last answer of each. The learner stays open.
   */
  close(graceMs?: number): Promise<void>;
}

/** Seconds after which a client is asked to come back. */
const retryAfter = 1;
const maxBodyBytes = 16 * 2 ** 20;
const episodeHeader = "x-episode-id";

/** Starts to listen. Throws NlacError ERR_CONFIG for options that do not go together, ERR_IO for an address in use. */
export async function serve(options: ServeOptions): Promise<Server> {
  const { host = "127.0.0.1", port = 8000, token } = options;
  if (token === undefined && !["127.0.0.1", "::1", "localhost"].includes(host))
    throw new NlacError(
      "ERR_CONFIG",
      `To serve on ${host}, beyond this machine, give a token that clients must send.`,
    );
  if (token === "") throw new NlacError("ERR_CONFIG", "The token is empty.");
  if (options.learner.tokenizer === undefined)
    throw new NlacError("ERR_CONFIG", "The model has no tokenizer, so it cannot be served.");
  const service = new Service(options);
  let http: ServerType;
  try {
    http = await new Promise<ServerType>((resolve, reject) => {
      const listening = serveHttp({ fetch: service.app.fetch, hostname: host, port }, () =>
        resolve(listening),
      );
      listening.once("error", reject);
    });
  } catch (error) {
    service.end();
    throw new NlacError("ERR_IO", `${host}:${port} cannot be listened on: ${(error as Error).message}`, {
      cause: error,
    });
  }
  const { port: bound } = http.address() as AddressInfo;
  let closing: Promise<void> | undefined;
  return {
    url: `http://${host.includes(":") ? `[${host}]` : host}:${bound}`,
    get recorded() {
      return service.recorded;
    },
    close: (graceMs = 30_000) => (closing ??= close(http, service, graceMs)),
  };
}

async function close(http: ServerType, service: Service, graceMs: number): Promise<void> {
  await service.drain(graceMs);
  const closed = new Promise<void>((resolve) => http.close(() => resolve()));
  // The last answers are on their way; who does not fetch them in time goes without.
  await Promise.race([closed, sleep(1000, undefined, { ref: false })]);
  if ("closeAllConnections" in http) http.closeAllConnections();
  await closed;
  service.end();
}

class Service {
  readonly app = new Hono();
  readonly #options: ServeOptions;
  readonly #conversations: Conversations;
  readonly #episodes: Episodes | undefined;
  /**
   * What is being written, each with what stops it. No signal of the server's own, joined to each request's by
   * AbortSignal.any: it would keep a trace of every one for as long as it lives.
   */
  readonly #answering = new Map<Promise<unknown>, AbortController>();
  #draining = false;
  /** Texts being written or waiting. */
  #texts = 0;
  #numbers = 0;

  constructor(options: ServeOptions) {
    this.#options = options;
    const { learner, record, maxHeldTokens = 4_000_000 } = options;
    this.#conversations = new Conversations(learner, maxHeldTokens);
    this.#episodes = record === undefined ? undefined : new Episodes(record, maxHeldTokens);
    this.#routes();
  }

  get recorded(): number {
    return this.#episodes?.recorded ?? 0;
  }

  async drain(graceMs: number): Promise<void> {
    this.#draining = true;
    const late = setTimeout(() => {
      for (const stop of this.#answering.values()) stop.abort();
    }, graceMs);
    await Promise.allSettled(this.#answering.keys());
    clearTimeout(late);
    await this.#episodes?.rewarded(graceMs);
  }

  end(): void {
    if (this.#episodes === undefined) return;
    this.#episodes.close();
    const { recorded, forgotten } = this.#episodes;
    this.#options.log?.(
      `${recorded} episodes recorded${forgotten > 0 ? `, ${forgotten} left out: they were never rewarded` : ""}`,
    );
  }

  #routes(): void {
    const { app } = this;
    const { token, name } = this.#options;
    app.onError((error, c) => answerError(c, error, this.#options.log));
    app.notFound((c) =>
      answerError(
        c,
        new RequestError(404, "invalid_request_error", `There is no ${c.req.method} ${c.req.path}.`),
      ),
    );
    app.get("/health", (c) =>
      this.#draining ? c.json({ status: "stopping" }, 503) : c.json({ status: "ok" }),
    );
    app.use("/v1/*", async (c, next) => {
      if (token !== undefined && !sameSecret(c.req.header("authorization"), `Bearer ${token}`))
        throw new RequestError(
          401,
          "invalid_request_error",
          "The API key is missing or wrong.",
          "invalid_api_key",
        );
      await next();
    });
    const tooLarge = () => {
      throw new RequestError(
        413,
        "invalid_request_error",
        `A request may have ${maxBodyBytes} bytes at most.`,
      );
    };
    app.use("/v1/*", bodyLimit({ maxSize: maxBodyBytes, onError: tooLarge }));
    const model = {
      id: name,
      object: "model",
      created: 0,
      owned_by: "nlac",
      max_model_len: this.#options.learner.maxPositions,
    };
    app.get("/v1/models", (c) => c.json({ object: "list", data: [model] }));
    app.get("/v1/models/:name{.+}", (c) => {
      this.#checkModel(c.req.param("name"));
      return c.json(model);
    });
    app.post("/v1/chat/completions", async (c) => this.#chat(c, readRequest(chatRequest, await body(c))));
    app.post("/v1/completions", async (c) =>
      this.#completions(c, readRequest(completionRequest, await body(c))),
    );
    app.post("/v1/episodes/:id/reward", async (c) => {
      if (this.#episodes === undefined)
        throw badRequest("Nothing is recorded here: start the server with a recording.");
      const { reward, truncated, terminated = !truncated } = readRequest(rewardRequest, await body(c));
      const ending = { terminated, truncated: truncated && !terminated };
      return c.json(this.#episodes.reward(c.req.param("id"), reward, ending));
    });
  }

  #checkModel(name: string): void {
    if (name === this.#options.name) return;
    throw new RequestError(
      404,
      "invalid_request_error",
      `There is no model ${JSON.stringify(name)} here, but ${JSON.stringify(this.#options.name)}.`,
      "model_not_found",
      "model",
    );
  }

  /**
   * Writes texts, all at once. Throws a RequestError, at once: of status 429 where too many are waiting, 400 where there could
   * never be room for them, 503 where the server is being stopped.
   */
  #generate(c: Context, requests: readonly GenerateRequest[], onToken?: OnToken): Promise<Generation[]> {
    const { learner, weights = "online", maxWaiting = 256 } = this.#options;
    if (this.#draining)
      throw new RequestError(503, "server_error", "The server is being stopped.", "stopping");
    if (requests.length > maxWaiting)
      throw badRequest(`${requests.length} texts are asked for at once; ${maxWaiting} are the most.`);
    if (this.#texts + requests.length > maxWaiting) {
      c.header("retry-after", String(retryAfter));
      const message = `${this.#texts} texts are being written or waiting; come back later.`;
      throw new RequestError(429, "rate_limit_error", message, "queue_full");
    }
    this.#texts += requests.length;
    const stop = new AbortController();
    const client = c.req.raw.signal;
    const leave = () => stop.abort();
    if (client.aborted) leave();
    client.addEventListener("abort", leave, { once: true });
    const generation = learner
      .generate(
        requests.map((request) => ({ ...request, weights })),
        { signal: stop.signal, ...(onToken && { onToken }) },
      )
      .finally(() => {
        client.removeEventListener("abort", leave);
        this.#answering.delete(generation);
        this.#texts -= requests.length;
      });
    this.#answering.set(generation, stop);
    return generation;
  }

  #checkLength(prompt: readonly number[], parameter: string): void {
    const { maxPositions } = this.#options.learner;
    if (prompt.length >= maxPositions)
      throw badRequest(
        `The prompt has ${prompt.length} tokens, and the model's context ${maxPositions}.`,
        parameter,
        "context_length_exceeded",
      );
  }

  /** n requests for one prompt, each with a stream of random numbers of its own. */
  #requests(
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

  async #chat(c: Context, request: ChatRequest): Promise<Response> {
    this.#checkModel(request.model);
    const { learner } = this.#options;
    const { tokenizer } = learner;
    const messages = this.#conversations.kept(saidIn(request.messages));
    const tools = toolsIn(request);
    if (tools.length > 0 && !this.#conversations.readsTools)
      throw badRequest("The model's chat template knows no tools, so the model would not see them.", "tools");
    const calls = mayCall(request);
    const names = namesOf(messages, tools);
    const asked = names.at(-1)!;
    const place = this.#episodes?.place(c.req.header(episodeHeader) || undefined, names);
    if (place !== undefined) {
      c.header(episodeHeader, place.name);
      if ((request.n ?? 1) > 1)
        throw badRequest("An episode goes on with one answer: n must be 1 where it is recorded.", "n");
    }
    const opened = this.#conversations.open(messages, tools, names, place?.held);
    const prompt = opened.prompt();
    this.#checkLength(prompt, "messages");
    const grammar = grammarOf(request, opened);
    const longest = request.max_completion_tokens ?? request.max_tokens;
    const requests = this.#requests(request, prompt, longest, request.top_logprobs).map((asked) =>
      grammar === undefined ? asked : { ...asked, grammar },
    );

    /** An answer that is whole: remembered, and recorded. */
    const finish = (generation: Generation) => {
      const read = replyOf(generation, calls);
      // A value of the format may look like a call.
      const isValue = formatOf(request) !== undefined && !tools.some(({ name }) => name === read.call?.name);
      const said = isValue ? replyOf(generation, false) : read;
      const [kept] = this.#conversations.kept([said]);
      const key = nameAfter(asked, kept!);
      const conversation = opened.fork().appendGeneration(generation);
      this.#conversations.keep(key, conversation);
      const state = opened.length;
      if (place !== undefined)
        this.#episodes!.add(place, {
          ...{ messages, asked, state, generation, conversation, key },
          calls: calls && !isValue,
        });
      return { said, generation };
    };
    const write = (onToken?: OnToken) => {
      const answers = this.#generate(c, requests, onToken).then((generations) => generations.map(finish));
      return place === undefined ? answers : this.#episodes!.during(place, answers);
    };
    const used = (answers: Awaited<ReturnType<typeof write>>) =>
      usage(
        prompt.length,
        answers.map(({ generation }) => generation),
      );
    const head = this.#head("chatcmpl", "chat.completion");
    if (!request.stream) {
      const answers = await write();
      const choices = answers.map(({ said, generation }, i) =>
        chatChoice(learner, request, i, said, generation),
      );
      const ids = request.return_token_ids ? { prompt_token_ids: prompt } : {};
      return c.json({ ...head, choices, usage: used(answers), ...ids });
    }

    // A call is known as one only when it is whole: where calls are possible a text is sent in one piece.
    const part = (index: number, delta: object, finish_reason: string | null = null, more: object = {}) => ({
      ...head,
      object: "chat.completion.chunk",
      choices: [{ index, delta, logprobs: null, finish_reason, ...more }],
      ...(request.stream_options?.include_usage ? { usage: null } : {}),
    });
    return streamTexts(c, tokenizer!, request, requests.length, write, {
      begin: () => requests.map((_, i) => part(i, { role: "assistant", content: "" })),
      ...(calls ? {} : { piece: (i: number, text: string) => part(i, { content: text }) }),
      end: (answers, sent) =>
        answers.flatMap(({ said, generation }, i) => {
          const choice = chatChoice(learner, request, i, said, generation);
          const { message: whole, finish_reason, logprobs, token_ids } = choice;
          const rest =
            said.call === undefined
              ? { content: said.content.slice(sent[i]!.length) }
              : { ...whole, tool_calls: whole.tool_calls!.map((call, index) => ({ index, ...call })) };
          return [
            ...(said.call !== undefined || rest.content !== "" ? [part(i, rest)] : []),
            part(i, {}, finish_reason, { logprobs, ...(token_ids ? { token_ids } : {}) }),
          ];
        }),
      usage: (answers) => ({
        ...head,
        object: "chat.completion.chunk",
        choices: [],
        usage: used(answers),
      }),
    });
  }

  async #completions(c: Context, request: CompletionRequest): Promise<Response> {
    this.#checkModel(request.model);
    const { learner } = this.#options;
    const { tokenizer } = learner;
    const prompts = request.prompt.map((prompt) =>
      typeof prompt === "string" ? learner.encode(prompt) : prompt,
    );
    for (const prompt of prompts) this.#checkLength(prompt, "prompt");
    const n = request.n ?? 1;
    // OpenAI's default of 16 tokens.
    const requests = prompts.flatMap((prompt, i) =>
      this.#requests(request, prompt, request.max_tokens ?? 16, request.logprobs, i * n),
    );
    const head = this.#head("cmpl", "text_completion");
    const read = prompts.reduce((sum, prompt) => sum + prompt.length, 0);
    const write = (onToken?: OnToken) => this.#generate(c, requests, onToken);
    if (!request.stream) {
      const generations = await write();
      const choices = generations.map((generation, i) =>
        completionChoice(learner, request, i, generation.text, generation),
      );
      return c.json({ ...head, choices, usage: usage(read, generations) });
    }
    const part = (index: number, text: string, generation?: Generation) => ({
      ...head,
      choices: [completionChoice(learner, request, index, text, generation)],
      ...(request.stream_options?.include_usage ? { usage: null } : {}),
    });
    return streamTexts(c, tokenizer!, request, requests.length, write, {
      begin: () => [],
      piece: part,
      end: (generations, sent) =>
        generations.map((generation, i) => part(i, generation.text.slice(sent[i]!.length), generation)),
      usage: (generations) => ({ ...head, choices: [], usage: usage(read, generations) }),
    });
  }

  #head(prefix: string, object: string) {
    const number = String(this.#numbers++).padStart(8, "0");
    return {
      id: `${prefix}-${number}`,
      object,
      created: Math.floor(Date.now() / 1000),
      model: this.#options.name,
    };
  }
}

/** What the answer must be. Throws a RequestError of status 400 for what it cannot be held to. */
function grammarOf(request: ChatRequest, conversation: Conversation): Grammar | undefined {
  const called = mustCall(request);
  const format = formatOf(request);
  const held = (parameter: string, make: () => Grammar): Grammar => {
    try {
      const grammar = make();
      grammarText(grammar, parameter);
      return grammar;
    } catch (error) {
      throw badRequest((error as Error).message, parameter);
    }
  };
  const call = (tools: readonly ToolSchema[]) =>
    held("tools", () => callGrammar(tools, callForm(conversation)));
  if (called !== undefined) return call(called);
  if (format === undefined) return undefined;
  const answer = held("response_format", () => format);
  return mayCall(request) ? { anyOf: [call(toolsIn(request)), answer] } : answer;
}

/** What the chat template writes around a call's name and arguments. */
function callForm(conversation: Conversation): CallForm {
  const [name, args] = ["nlac-name", "nlac-arguments"];
  const { text } = conversation.writeCall({ name, arguments: args });
  const [before, rest] = text.split(name) as [string, string];
  const [between, after] = rest.split(args) as [string, string];
  return { before, between, after };
}

const rewardRequest = z.strictObject({
  reward: z.number(),
  /** Whether the task has ended. Default: yes, unless the episode is `truncated`. */
  terminated: z.boolean().optional(),
  /** Whether a limit of the agent's own cut the episode: it is over, without an outcome. */
  truncated: z.boolean().default(false),
});

async function body(c: Context): Promise<unknown> {
  try {
    return await c.req.json();
  } catch (error) {
    if (error instanceof RequestError) throw error;
    throw badRequest("The request's body is not JSON.");
  }
}

function answerError(c: Context, error: unknown, log?: (line: string) => void): Response {
  const answer = asRequestError(error);
  if (answer.status === 500) log?.(error instanceof Error ? (error.stack ?? error.message) : String(error));
  return c.json(answer.body, answer.status);
}

/** Compares in a time that tells nothing of where they differ. */
function sameSecret(given: string | undefined, wanted: string): boolean {
  const hash = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(hash(given ?? ""), hash(wanted));
}

/** Of the i-th text of a request with a seed: the first one's is the request's. */
function seedOf(seed: number, i: number): bigint {
  return BigInt.asUintN(64, BigInt(seed) + BigInt(i) * 0x9e3779b97f4a7c15n);
}
