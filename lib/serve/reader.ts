/**
 * Reads requests without stalling the event loop: small ones on it, one at a time, and large ones
 * in a thread. The thread starts with the first large request, and ends when it has been idle, so
 * that its memory is returned.
 */

import { once } from "node:events";
import { setImmediate as nextIteration } from "node:timers/promises";
import type { Worker } from "node:worker_threads";
import type { Context } from "hono";
import { NlacError } from "../base/errors.ts";
import { startWorker } from "../base/start-worker.ts";
import { afterRunning } from "../base/timer.ts";
import type { Tokenizer } from "../tokens/tokenizer.ts";
import { type ClientKeys, clientOf, FairQueue, type Waiting } from "./fair-queue.ts";
import {
  type ReadChat,
  type ReadCompletion,
  type ReadLimits,
  type Rendered,
  type Rendering,
  RequestReader,
} from "./reading.ts";
import { badRequest, RequestError } from "./request-error.ts";

/** Bytes up to which a request is read on the event loop. */
const maxSmall = 8 * 2 ** 10;
/** Milliseconds that the thread may take for one request, without pauses of the process. */
const timeoutMs = 10_000;
/** Milliseconds after which an idle thread ends. */
const idleMs = 20_000;
/** Memory limit of the thread's JavaScript heap, in megabytes. */
const maxMemory = 2048;

/** Requests to the thread. */
export type ReadJob =
  | { kind: "chat"; body: Uint8Array }
  | { kind: "completion"; body: Uint8Array }
  | { kind: "render"; rendering: Rendering };

type Result<J extends ReadJob> = J extends { kind: "chat" }
  ? ReadChat
  : J extends { kind: "completion" }
    ? ReadCompletion
    : Rendered;

/** What the thread answers. */
export type ReadReply =
  | { result: Result<ReadJob> }
  | { refused: ConstructorParameters<typeof RequestError> }
  | { failed: ConstructorParameters<typeof NlacError> };

/** What the thread starts with. `tokenizer` is JSON, shared so that a restart does not copy it. */
export interface ReaderData {
  tokenizer: Uint8Array;
  limits: ReadLimits;
}

/** Whose request is read. */
export interface Asking {
  client: ClientKeys;
  /** Fires when the client has disconnected: its request is then not read any more. */
  signal?: AbortSignal;
}

export function askingOf(c: Context): Asking {
  return { client: clientOf(c), signal: c.req.raw.signal };
}

interface WaitingJob extends Waiting {
  job: ReadJob;
  resolve: (result: Result<ReadJob>) => void;
  reject: (error: Error) => void;
}

export class Reader {
  /** Reads on the event loop. */
  readonly inline: RequestReader;
  readonly #thread: ReaderThread;
  #last: Promise<unknown> = Promise.resolve();

  constructor(tokenizer: Tokenizer, limits: ReadLimits) {
    this.inline = new RequestReader(tokenizer, limits);
    try {
      // No request should wait for it.
      if (tokenizer.chatTemplate !== undefined) this.inline.template.prepareCallForms(tokenizer);
    } catch {
      // Reported to the requests that need the template.
    }
    this.#thread = new ReaderThread(tokenizer, limits);
  }

  /** Throws as RequestReader.chat; RequestError of status 400 if it takes too long. */
  chat(body: Uint8Array, asking: Asking): Promise<ReadChat> {
    return this.#read({ kind: "chat", body }, body.length, asking, () => this.inline.chat(body));
  }

  /** Throws as RequestReader.completion; RequestError of status 400 if it takes too long. */
  completion(body: Uint8Array, asking: Asking): Promise<ReadCompletion> {
    return this.#read({ kind: "completion", body }, body.length, asking, () => this.inline.completion(body));
  }

  /**
   * Throws as RequestReader.render; RequestError of status 400 if it takes too long.
   * @param bytes size of the request
   */
  render(rendering: Rendering, bytes: number, asking: Asking): Promise<Rendered> {
    return this.#read({ kind: "render", rendering }, bytes, asking, () => this.inline.render(rendering));
  }

  /** Ends the thread. Requests that still wait for it fail with ERR_ABORTED. */
  async close(): Promise<void> {
    this.#thread.dropWaiting();
    await this.#thread.end();
  }

  #read<J extends ReadJob>(
    job: J,
    bytes: number,
    asking: Asking,
    inline: () => Result<J>,
  ): Promise<Result<J>> {
    if (bytes > maxSmall) return this.#thread.ask(job, bytes, asking) as Promise<Result<J>>;
    const turn = this.#last.then(() => nextIteration()).then(inline);
    this.#last = turn.catch(() => {});
    return turn;
  }
}

/** One thread, which reads one request at a time. */
class ReaderThread {
  readonly #data: ReaderData;
  readonly #waiting = new FairQueue<WaitingJob>();
  #worker: Promise<Worker> | undefined;
  #working = false;
  #idle: NodeJS.Timeout | undefined;

  constructor(tokenizer: Tokenizer, limits: ReadLimits) {
    const { json, namedTokens: config, chatTemplate, eosTokenIds } = tokenizer;
    const bytes = Buffer.from(JSON.stringify({ json, config, chatTemplate, eosTokenIds }));
    const shared = new Uint8Array(new SharedArrayBuffer(bytes.length));
    shared.set(bytes);
    this.#data = { tokenizer: shared, limits };
  }

  ask(job: ReadJob, bytes: number, { client, signal }: Asking): Promise<Result<ReadJob>> {
    return new Promise((resolve, reject) => {
      const waiting = { job, client, cost: bytes, resolve, reject };
      const leave = () => {
        if (this.#waiting.remove(waiting) !== undefined) reject(gone());
      };
      if (signal?.aborted) return reject(gone());
      signal?.addEventListener("abort", leave, { once: true });
      this.#waiting.add(waiting);
      if (!this.#working) void this.#work();
    });
  }

  dropWaiting(): void {
    const error = new NlacError("ERR_ABORTED", "The server was closed.");
    for (let next = this.#waiting.next(); next !== undefined; next = this.#waiting.next()) next.reject(error);
  }

  async end(): Promise<void> {
    clearTimeout(this.#idle);
    const worker = this.#worker;
    this.#worker = undefined;
    await (await worker?.catch(() => undefined))?.terminate();
  }

  async #work(): Promise<void> {
    this.#working = true;
    clearTimeout(this.#idle);
    for (let next = this.#waiting.next(); next !== undefined; next = this.#waiting.next()) {
      const begun = performance.now();
      try {
        next.resolve(await this.#answer(next.job));
      } catch (error) {
        next.reject(error as Error);
      }
      this.#waiting.spend(next.client, performance.now() - begun);
    }
    this.#working = false;
    this.#idle = setTimeout(() => void this.end(), idleMs).unref();
  }

  async #answer(job: ReadJob): Promise<Result<ReadJob>> {
    this.#worker ??= startThread(this.#data);
    const worker = await this.#worker.catch((error: unknown) => {
      this.#worker = undefined;
      throw error;
    });
    const controller = new AbortController();
    const stop = () => controller.abort();
    const inTime = afterRunning(timeoutMs, stop);
    worker.once("exit", stop);
    worker.ref();
    worker.postMessage(job, "body" in job ? [job.body.buffer as ArrayBuffer] : []);
    let reply: ReadReply;
    try {
      [reply] = (await once(worker, "message", controller)) as [ReadReply];
    } catch {
      // Timed out, out of memory, or ended.
      await this.end();
      throw badRequest("The request takes too long or too much memory to read.", null, "too_complex");
    } finally {
      inTime();
      worker.off("exit", stop);
      worker.unref();
    }
    if ("refused" in reply) throw new RequestError(...reply.refused);
    if ("failed" in reply) throw new NlacError(...reply.failed);
    return reply.result;
  }
}

function gone(): RequestError {
  return badRequest("The client has disconnected.", null, "disconnected");
}

function startThread(workerData: ReaderData): Promise<Worker> {
  return startWorker(
    "reader-worker",
    import.meta.url,
    "The thread that reads large requests did not start.",
    { workerData, resourceLimits: { maxOldGenerationSizeMb: maxMemory } },
  );
}
