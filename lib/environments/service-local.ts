/**
 * A language model in this process as a service: offline, and the same every time. Requests that arrive together, from
 * episodes that run side by side, are generated as one batch. A text depends on its own request alone.
 */

import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { z } from "zod";
import { checkConfig } from "../checks.ts";
import { NlacError, throwIfAborted } from "../errors.ts";
import type { Learner, LearnerOptions } from "../learner.ts";
import type { GenerateRequest, Generation } from "../model.ts";
import { nothingUsed } from "./contract.ts";
import { asHeard, type ChatService, replyOf } from "./service.ts";

/** What a reply takes of a learner. */
export type LocalModel = Pick<Learner, "render" | "generate" | "maxPositions">;

export interface LocalServiceOptions extends Pick<LearnerOptions, "device" | "dtype"> {
  /**
   * A known name, a Hugging Face directory or a .gguf file: loaded at the first request, and once for all services of
   * the process that ask for the same. Or a learner, which stays the caller's to dispose of.
   */
  local: string | LocalModel;
  /** Sampling temperature. Default 0. */
  temperature?: number;
  /** Most tokens of a reply. Default 512. */
  maxTokens?: number;
  /**
   * Bytes for the keys and values of past requests. With room for them a conversation that grew is not read again, but a
   * rare token may then depend on what was asked before. Default 0.
   */
  cacheBytes?: number;
}

const optionsSchema = z.strictObject({
  local: z.union([
    z.string().min(1),
    z.custom<LocalModel>((value) => typeof value === "object" && value !== null && "generate" in value),
  ]),
  device: z.string().optional(),
  dtype: z.enum(["bfloat16", "float32"]).optional(),
  temperature: z.number().nonnegative().default(0),
  maxTokens: z.int().positive().default(512),
  cacheBytes: z.int().nonnegative().default(0),
});

/** Opens a service; nothing is loaded yet. Throws ERR_CONFIG for options that do not validate. */
export function localService(options: LocalServiceOptions): ChatService {
  const { local, temperature, maxTokens, ...loading } = checkConfig(optionsSchema, options);
  const batches = typeof local === "string" ? sharedModel(local, loading) : givenModel(local);
  const name = typeof local === "string" ? local : "the given learner";
  const defaults = { maxTokens, temperature };
  const used = { ...nothingUsed };
  let closed = false;
  return {
    model: name,
    defaults,
    usage: () => ({ ...used }),
    async complete(messages, { signal, ...given } = {}) {
      throwIfAborted(signal);
      if (closed) throw new NlacError("ERR_DISPOSED", `The service of ${name} is closed.`);
      const heard = messages.map(asHeard);
      const settings = {
        maxTokens: given.maxTokens ?? maxTokens,
        temperature: given.temperature ?? temperature,
      };
      used.requests++;
      const model = await batches.model();
      throwIfAborted(signal);
      let generation: Generation;
      try {
        const tokens = model.render(heard, { addGenerationPrompt: true });
        const room = model.maxPositions - tokens.length;
        if (room < 1) {
          throw new Error(`a prompt of ${tokens.length} tokens; the model reads ${model.maxPositions}.`);
        }
        generation = await batches.generate(
          {
            tokens,
            maxNewTokens: Math.min(settings.maxTokens, room),
            temperature: settings.temperature,
            seed: seedOf([heard, settings, given.seed]),
          },
          signal,
        );
        used.promptTokens += tokens.length;
        used.completionTokens += generation.tokens.length;
      } catch (error) {
        throwIfAborted(signal);
        const reason = error instanceof Error ? error.message : String(error);
        throw new NlacError("ERR_SERVICE", `The service of ${name} failed: ${reason}`, { cause: error });
      }
      return replyOf(generation.text, name);
    },
    async close() {
      if (closed) return;
      closed = true;
      await batches.release();
    },
  };
}

/** The request's own random stream. */
function seedOf(request: unknown): bigint {
  return createHash("sha256").update(JSON.stringify(request)).digest().readBigUInt64LE();
}

// ----------------------------------------------------------------------------------------------------- models

/** A model whose requests wait for each other, shared by the services that use it. */
interface BatchedModel {
  model(): Promise<LocalModel>;
  /** The model must have been asked for. */
  generate(request: GenerateRequest, signal: AbortSignal | undefined): Promise<Generation>;
  /** Once for every service. */
  release(): Promise<void>;
}

function givenModel(model: LocalModel): BatchedModel {
  return { model: async () => model, generate: batching(model), release: async () => {} };
}

interface LoadedModel {
  model: LocalModel;
  generate: BatchedModel["generate"];
  dispose(): Promise<void>;
}

const shared = new Map<string, { users: number; loading?: Promise<LoadedModel> }>();

function sharedModel(name: string, options: LearnerOptions): BatchedModel {
  const key = JSON.stringify([existsSync(name) ? resolve(name) : name, options]);
  const entry = shared.get(key) ?? { users: 0 };
  shared.set(key, entry);
  entry.users++;
  const load = async (): Promise<LoadedModel> => {
    // Whoever asks no model in this process needs no libtorch.
    const { Learner } = await import("../learner.ts");
    const learner = await Learner.load(name, options);
    return { model: learner, generate: batching(learner), dispose: () => learner.dispose() };
  };
  const loaded = (): Promise<LoadedModel> => {
    entry.loading ??= load();
    return entry.loading;
  };
  return {
    model: async () => (await loaded()).model,
    generate: async (request, signal) => (await loaded()).generate(request, signal),
    async release() {
      if (--entry.users > 0) return;
      shared.delete(key);
      // One that could not be loaded said so to whoever asked.
      await entry.loading?.then(
        (model) => model.dispose(),
        () => {},
      );
    },
  };
}

// ---------------------------------------------------------------------------------------------------- batches

/** How long the first request of a batch waits for others, in milliseconds. */
const gathering = 10;

interface Waiting {
  request: GenerateRequest;
  signal: AbortSignal | undefined;
  resolve(generation: Generation): void;
  reject(error: unknown): void;
}

/**
 * Generates requests one by one for whoever asks, but all that wait at once for the model. An aborted request leaves at
 * once; a batch is broken off when all of its requests were aborted.
 */
function batching(model: LocalModel): BatchedModel["generate"] {
  let waiting: Waiting[] = [];
  let running = false;

  const generate = async (batch: Waiting[]): Promise<void> => {
    const stop = new AbortController();
    const stopIfAlone = () => {
      if (batch.every(({ signal }) => signal?.aborted)) stop.abort();
    };
    for (const { signal } of batch) signal?.addEventListener("abort", stopIfAlone, { once: true });
    try {
      const requests = batch.map(({ request }) => request);
      const generations = await model.generate(requests, { signal: stop.signal });
      for (const [i, { resolve }] of batch.entries()) resolve(generations[i]!);
    } catch (error) {
      for (const { reject } of batch) reject(error);
    } finally {
      for (const { signal } of batch) signal?.removeEventListener("abort", stopIfAlone);
    }
  };

  const run = async (): Promise<void> => {
    running = true;
    await new Promise((done) => setTimeout(done, gathering));
    while (waiting.length > 0) {
      const batch = waiting.filter(({ signal }) => !signal?.aborted);
      waiting = [];
      if (batch.length > 0) await generate(batch);
    }
    running = false;
  };

  return async (request, signal) => {
    let leave = () => {};
    const generation = new Promise<Generation>((resolve, reject) => {
      leave = () => reject(signal?.reason);
      waiting.push({ request, signal, resolve, reject });
    });
    signal?.addEventListener("abort", leave, { once: true });
    if (!running) void run();
    try {
      return await generation;
    } finally {
      signal?.removeEventListener("abort", leave);
    }
  };
}
