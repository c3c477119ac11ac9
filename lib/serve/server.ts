/**
 * Serves a model behind OpenAI's API, and records the episodes of its clients.
 *
 *   GET  /v1/models, /health
 *   POST /v1/chat/completions, /v1/completions
 *   POST /v1/episodes/{id}/reward              with a recording
 *
 * Requests are generated together. A request that would bring the completions,
 * running and waiting, above `maxWaiting` gets status 429; one for a single
 * completion only if as many requests run or wait.
 */

import { createServer, type Server as HttpServer } from "node:http";
import type { Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { getRequestListener, type HttpBindings } from "@hono/node-server";
import { type Context, Hono } from "hono";
import { z } from "zod";
import { counted } from "../base/counted.ts";
import { messageOf, NlacError } from "../base/errors.ts";
import { maxDelayMs } from "../base/timer.ts";
import type { EpisodeRecord } from "../episodes/records.ts";
import type { WeightSet } from "../model/language-model.ts";
import type { ActionFormat } from "../prompts/policy.ts";
import { Conversation } from "../tokens/conversation.ts";
import { Bodies } from "./body.ts";
import { Chats } from "./chat.ts";
import { answerCompletion } from "./completions.ts";
import type { ServedModel } from "./conversation-cache.ts";
import { Episodes } from "./episodes.ts";
import { corsFor, guard } from "./guard.ts";
import { parseWithinLimits } from "./json-limits.ts";
import { listenOn } from "./listen.ts";
import { OpenLog } from "./open-log.ts";
import { observedMessage, readRequest } from "./protocol.ts";
import { RequestQueue } from "./queue.ts";
import { askingOf, Reader } from "./reader.ts";
import { type Redact, redactEpisode } from "./redact.ts";
import { idempotencyKey } from "./repeated-rewards.ts";
import { asRequestError, badRequest, loggedFailure, RequestError } from "./request-error.ts";
import { requireScope, requiresKey, type Scope, scopeOf } from "./scopes.ts";

/** Options of `serve`. */
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
  /**
   * Maximum number of completions in progress or waiting; a request that would exceed it gets
   * status 429. Requests for one completion are refused only if as many requests are in progress or
   * waiting, so that one for many does not lock them out. Default 256.
   */
  maxWaiting?: number;
  /** A file to which rewarded episodes are appended. */
  record?: string;
  /** Maximum size of a request's body in bytes. Default 16 MiB. */
  maxBodyBytes?: number;
  /**
   * Names, besides those of this machine and `host`, by which clients may call the server. Default
   * none.
   */
  allowHosts?: readonly string[];
  /**
   * Origins of web pages that may use the server, for example "https://chat.example"; "*" for all.
   * Default none.
   */
  corsOrigins?: readonly string[];
  /**
   * Maximum total length of the cached conversations, and of the open episodes, in tokens. Default
   * 4,000,000.
   */
  maxHeldTokens?: number;
  /** Further API keys and their scopes; `token` may do everything. Default none. */
  tokens?: Readonly<Record<string, readonly Scope[]>>;
  /** With `record`: a file in which open episodes survive a restart. Default: they are lost. */
  openLog?: string;
  /**
   * With `openLog`: open episodes without an answer or reward for this long are ended. Default:
   * never.
   */
  maxIdleMs?: number;
  /**
   * How actions of recorded turns are read. Default: calls where tools are given, else the whole
   * text.
   */
  actionFormat?: ActionFormat;
  /**
   * Called with each text of an episode before it is stored; what it returns is stored instead.
   * With `openLog`, the model reads the stored texts of an open episode after a restart. Default:
   * none.
   */
  redact?: Redact;
  /** Called with each recorded episode. */
  onRecord?: (record: EpisodeRecord) => void;
  /** Adds endpoints. */
  extend?: (extension: Extension) => void;
  /** Called with messages for the operator. */
  log?: (line: string) => void;
}

/** What adds endpoints to a server. */
export interface Extension {
  app: Hono;
  /** With `record`. */
  episodes: Episodes | undefined;
  /** The body of a request by a schema. Throws a RequestError. */
  read<T>(c: Context, schema: z.ZodType<T>): Promise<T>;
}

/** A running server. */
export interface Server {
  /** http://host:port */
  url: string;
  /** Episodes written so far. */
  readonly recorded: number;
  /**
   * Refuses new requests, finishes those in progress, or ends them after `graceMs` milliseconds,
   * default 30,000. Without `openLog` it then takes the rewards of open episodes until `graceMs`
   * after the last answer of each. The learner stays open.
   */
  close(graceMs?: number): Promise<void>;
}

/**
 * Time for the headers of a request, and for all of it; a client that reads nothing is disconnected
 * after the latter.
 */
const [headersTimeoutMs, requestTimeoutMs] = [20_000, 60_000];

const httpOptions = {
  headersTimeout: headersTimeoutMs,
  requestTimeout: requestTimeoutMs,
  connectionsCheckingInterval: 5_000,
  // The guard answers a request without one.
  requireHostHeader: false,
};

/**
 * Starts to listen.
 * @throws NlacError ERR_CONFIG for options that do not go together, ERR_IO for an address in use
 */
export async function serve(options: ServeOptions): Promise<Server> {
  const { host = "127.0.0.1", port = 8000, token } = options;
  if (!requiresKey(options) && !["127.0.0.1", "::1", "localhost"].includes(host))
    throw new NlacError(
      "ERR_CONFIG",
      `Other machines can reach ${host}: set a token that clients must send (nlac serve --token).`,
    );
  if (token === "" || options.tokens?.[""] !== undefined)
    throw new NlacError("ERR_CONFIG", "The token is empty.");
  if (options.learner.tokenizer === undefined)
    throw new NlacError("ERR_CONFIG", "The model has no tokenizer, so it cannot be served.");
  const service = new Service(options);
  const listener = getRequestListener(service.app.fetch, {
    hostname: host,
    errorHandler: () =>
      Response.json(badRequest("The request is not HTTP.", null, "invalid_http").body, { status: 400 }),
  });
  const http = createServer(httpOptions, listener).on("clientError", answerBroken);
  const bound = await listenOn(http, host, port).catch(async (error: unknown) => {
    await service.end();
    throw error;
  });
  let closing: Promise<void> | undefined;
  return {
    url: `http://${host.includes(":") ? `[${host}]` : host}:${bound}`,
    get recorded() {
      return service.recorded;
    },
    close: (graceMs = 30_000) => (closing ??= close(http, service, Math.min(graceMs, maxDelayMs))),
  };
}

async function close(http: HttpServer, service: Service, graceMs: number): Promise<void> {
  await service.drain(graceMs);
  const closed = new Promise<void>((resolve) => http.close(() => resolve()));
  // Connections get a second to finish, then they are closed.
  await Promise.race([closed, sleep(1000, undefined, { ref: false })]);
  http.closeAllConnections();
  await closed;
  await service.end();
}

/** Answers requests that are not HTTP, or that took too long to arrive. */
function answerBroken(error: NodeJS.ErrnoException, socket: Socket): void {
  if (!socket.writable || error.code === "ECONNRESET") return void socket.destroy();
  const [status, message] =
    error.code === "HPE_HEADER_OVERFLOW"
      ? ["431 Request Header Fields Too Large", "The request's headers are too large."]
      : error.code === "ERR_HTTP_REQUEST_TIMEOUT"
        ? ["408 Request Timeout", "The request took too long to arrive."]
        : ["400 Bad Request", "The request is not HTTP."];
  const { body } = badRequest(message, null, "invalid_http");
  socket.end(
    `HTTP/1.1 ${status}\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n${JSON.stringify(body)}`,
  );
}

class Service {
  readonly app = new Hono();
  readonly #options: ServeOptions;
  readonly #queue: RequestQueue;
  readonly #reader: Reader;
  readonly #chats: Chats;
  readonly #bodies: Bodies;
  readonly #episodes: Episodes | undefined;
  #expiring: NodeJS.Timeout | undefined;

  constructor(options: ServeOptions) {
    this.#options = options;
    const { learner, record, maxHeldTokens = 4_000_000, maxBodyBytes = 16 * 2 ** 20 } = options;
    const { maxPositions } = learner;
    this.#queue = new RequestQueue(options);
    this.#reader = new Reader(learner.tokenizer!, { maxTexts: options.maxWaiting ?? 256, maxPositions });
    this.#bodies = new Bodies(maxBodyBytes);
    this.#episodes = record === undefined ? undefined : this.#openEpisodes(record, maxHeldTokens);
    this.#chats = new Chats(this.#queue, this.#reader, maxHeldTokens, this.#episodes);
    this.#routes();
  }

  #openEpisodes(record: string, maxHeldTokens: number): Episodes {
    const { openLog, maxIdleMs, onRecord, log, learner, actionFormat, redact } = this.#options;
    const open = openLog === undefined ? undefined : new OpenLog(openLog);
    const onFault = (error: unknown) => log?.(messageOf(error));
    try {
      const episodes = new Episodes(record, maxHeldTokens, {
        ...(open && { open }),
        ...(onRecord && { onRecord }),
        ...(actionFormat && { actionFormat }),
        ...(redact && { redact: (record) => redactEpisode(record, redact, learner.tokenizer!) }),
        onFault,
        restore: (json) => Conversation.fromJSON(json, learner.tokenizer!, this.#reader.inline.template),
      });
      if (open === undefined || maxIdleMs === undefined) return episodes;
      const expire = () => void episodes.expire(maxIdleMs).catch(onFault);
      this.#expiring = setInterval(expire, Math.min(maxIdleMs, 60_000)).unref();
      return episodes;
    } catch (error) {
      open?.close();
      throw error;
    }
  }

  get recorded(): number {
    return this.#episodes?.recorded ?? 0;
  }

  async drain(graceMs: number): Promise<void> {
    await this.#queue.drain(graceMs);
    // Open episodes of a log are continued by the next server.
    if (this.#options.openLog === undefined) await this.#episodes?.rewarded(graceMs);
  }

  async end(): Promise<void> {
    clearInterval(this.#expiring);
    await this.#reader.close();
    if (this.#episodes === undefined) return;
    this.#episodes.close();
    const { recorded, forgotten } = this.#episodes;
    this.#options.log?.(
      `${counted(recorded, "episode")} recorded${forgotten > 0 ? `, ${forgotten} left out: they were never rewarded` : ""}`,
    );
  }

  #routes(): void {
    const { app } = this;
    const { name, host = "127.0.0.1", allowHosts = [], corsOrigins = [] } = this.#options;
    app.onError((error, c) => answerError(c, error, this.#options.log));
    app.notFound((c) =>
      answerError(c, noEndpoint(c.req.method, c.req.path, this.#options.extend !== undefined)),
    );
    if (corsOrigins.length > 0) app.use("*", corsFor(corsOrigins));
    app.use("*", guard({ host, allowHosts, corsOrigins }));
    app.use("*", async (c, next) => {
      await next();
      // Streams have their own timeout, because they may have nothing to send.
      const isStream = c.res.headers.get("content-type")?.startsWith("text/event-stream");
      if (!isStream) (c.env as HttpBindings).outgoing.setTimeout(requestTimeoutMs);
    });
    app.get("/health", (c) =>
      this.#queue.draining ? c.json({ status: "stopping" }, 503) : c.json({ status: "ok" }),
    );
    app.use("/v1/*", async (c, next) => {
      requireScope(c.req.header("authorization"), scopeOf(c.req.path, c.req.method), this.#options);
      await next();
    });
    const model = {
      id: name,
      object: "model",
      created: 0,
      owned_by: "nlac",
      max_model_len: this.#options.learner.maxPositions,
    };
    app.get("/v1/models", (c) => c.json({ object: "list", data: [model] }));
    app.get("/v1/models/:name{.+}", (c) => {
      this.#queue.checkModel(c.req.param("name"));
      return c.json(model);
    });
    app.post("/v1/chat/completions", async (c) => {
      let bytes = 0;
      const read = await this.#bodies.with(c, (body) => {
        bytes = body.length;
        return this.#reader.chat(body, askingOf(c));
      });
      return this.#chats.answer(c, read, bytes);
    });
    app.post("/v1/completions", async (c) => {
      const read = await this.#bodies.with(c, (body) => this.#reader.completion(body, askingOf(c)));
      return answerCompletion(this.#queue, c, read);
    });
    const read = <T>(c: Context, schema: z.ZodType<T>) =>
      this.#bodies.with(c, async (body) => {
        if (body.length > maxSmallBody)
          throw badRequest(`This request may have ${maxSmallBody} bytes at most.`, null, "request_too_large");
        return readRequest(schema, parseWithinLimits(body));
      });
    app.post("/v1/episodes/:id/reward", async (c) => {
      if (this.#episodes === undefined)
        throw badRequest("This server records no episodes: start it with --record FILE or --train RECIPE.");
      const asked = await read(c, rewardRequest);
      const { reward, turn, truncated, terminated = !truncated && turn === undefined } = asked;
      const ending = { terminated, truncated: truncated && !terminated };
      const key = idempotencyKey(c);
      return c.json(
        this.#episodes.reward(c.req.param("id"), reward, ending, { turn, observation: asked.messages, key }),
      );
    });
    this.#options.extend?.({ app, episodes: this.#episodes, read });
  }
}

/** Maximum size of the body of a request for anything but a completion. */
const maxSmallBody = 65_536;

const rewardRequest = z.strictObject({
  reward: z.number({ error: "must be a finite number (JSON.stringify writes NaN and Infinity as null)" }),
  /** The turn that is rewarded, from 0. Default: the last one. */
  turn: z.int().min(0).optional(),
  /**
   * The messages that followed the last turn, if no further request contains them: for example the
   * result of its call.
   */
  messages: z.array(observedMessage).max(64).optional(),
  /**
   * Whether the task has ended. Default: yes, unless the episode is `truncated` or a `turn` is
   * given.
   */
  terminated: z.boolean().optional(),
  /** Whether the agent's own limit cut the episode: it then ends without an outcome. */
  truncated: z.boolean().default(false),
});

/** The error of a request to an address that the server does not have, with the usual reason. */
function noEndpoint(method: string, path: string, trains: boolean): RequestError {
  const reasons: [boolean, string][] = [
    [!path.startsWith("/v1/"), "The base URL ends in /v1."],
    [
      path.startsWith("/v1/responses"),
      "The Responses API is not supported: let the client use POST /v1/chat/completions.",
    ],
    [
      /^\/v1\/episodes\/.+\/.+\/(reward|corrections)$/.test(path),
      "Encode the name of the episode with encodeURIComponent.",
    ],
    [
      !trains && /^\/v1\/(training|versions|metrics|tasks|episodes\/[^/]+\/corrections)(\/|$)/.test(path),
      "Only servers with --train have it.",
    ],
  ];
  const found = reasons.find(([applies]) => applies);
  return new RequestError(
    404,
    `There is no ${method} ${path}.${found === undefined ? "" : ` ${found[1]}`}`,
    "not_found",
  );
}

function answerError(c: Context, error: unknown, log?: (line: string) => void): Response {
  const answer = asRequestError(error);
  if (answer.status === 500) log?.(loggedFailure(error));
  return c.json(answer.body, answer.status);
}
