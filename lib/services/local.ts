/**
 * A language model in this process as a service: offline. Each request is a call of its own; the learner writes those of
 * episodes that run side by side together, as far as its memory allows. A text depends on its own request alone, as far
 * as generation's do (Learner.generate): elsewhere than on a CPU a near tie may fall otherwise in other company.
 */

import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { z } from "zod";
import { NlacError, throwIfAborted } from "../base/errors.ts";
import { checkConfig } from "../base/validation.ts";
import { nothingUsed } from "../contract/environment.ts";
import type { Learner } from "../learner/learner.ts";
import { type LearnerOptions, recipeFields } from "../learner/options.ts";
import type { Generation } from "../model/language-model.ts";
import { asHeard, type ChatService, replyOf } from "./chat-service.ts";

/** What a reply takes of a learner. */
export type LocalModel = Pick<Learner, "render" | "generate" | "maxPositions">;

export interface LocalServiceOptions extends Pick<LearnerOptions, "device" | "dtype" | "int8Generation"> {
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
   * Bytes for the keys and values of requests under way and of past ones: what is written side by side, and how much of a
   * conversation that grew is not read again. Default: the learner's. 0: one request at a time, each read anew.
   */
  cacheBytes?: number;
}

const optionsSchema = z.strictObject({
  local: z.union([
    z.string().min(1),
    z.custom<LocalModel>((value) => typeof value === "object" && value !== null && "generate" in value),
  ]),
  // Without their defaults: what is not given is the learner's to choose.
  device: recipeFields.device.unwrap().optional(),
  dtype: recipeFields.dtype.unwrap().optional(),
  int8Generation: recipeFields.int8Generation.unwrap().optional(),
  temperature: z.number().nonnegative().default(0),
  maxTokens: z.int().positive().default(512),
  cacheBytes: recipeFields.cacheBytes.unwrap().optional(),
});

/** Opens a service; nothing is loaded yet. Throws ERR_CONFIG for options that do not validate. */
export function localService(options: LocalServiceOptions): ChatService {
  const { local, temperature, maxTokens, ...loading } = checkConfig(optionsSchema, options);
  const source = typeof local === "string" ? sharedModel(local, loading) : givenModel(local);
  const name = typeof local === "string" ? local : "the given learner";
  const defaults = { maxTokens, temperature };
  const used = { ...nothingUsed };
  let closed = false;
  return {
    model: name,
    defaults,
    usage: () => ({ ...used }),
    async complete(messages, { signal, onCut, ...given } = {}) {
      throwIfAborted(signal);
      if (closed) throw new NlacError("ERR_DISPOSED", `The service of ${name} is closed.`);
      const heard = messages.map(asHeard);
      const settings = {
        maxTokens: given.maxTokens ?? maxTokens,
        temperature: given.temperature ?? temperature,
      };
      used.requests++;
      const model = await source.model();
      throwIfAborted(signal);
      let generation: Generation;
      try {
        const tokens = model.render(heard, { addGenerationPrompt: true });
        const room = model.maxPositions - tokens.length;
        if (room < 1) {
          throw new Error(`a prompt of ${tokens.length} tokens; the model reads ${model.maxPositions}.`);
        }
        const request = {
          tokens,
          maxNewTokens: Math.min(settings.maxTokens, room),
          temperature: settings.temperature,
          seed: seedOf([heard, settings, given.seed]),
        };
        generation = (await model.generate([request], signal && { signal }))[0]!;
        used.promptTokens += tokens.length;
        used.completionTokens += generation.tokens.length;
      } catch (error) {
        throwIfAborted(signal);
        const reason = error instanceof Error ? error.message : String(error);
        throw new NlacError("ERR_SERVICE", `The service of ${name} failed: ${reason}`, { cause: error });
      }
      if (generation.finishReason === "length") onCut?.();
      return replyOf(generation.text, name);
    },
    async close() {
      if (closed) return;
      closed = true;
      await source.release();
    },
  };
}

/** The request's own random stream. */
function seedOf(request: unknown): bigint {
  return createHash("sha256").update(JSON.stringify(request)).digest().readBigUInt64LE();
}

// ----------------------------------------------------------------------------------------------------- models

/** Where a service has its model from. */
interface ModelSource {
  model(): Promise<LocalModel>;
  /** Once for every service. */
  release(): Promise<void>;
}

function givenModel(model: LocalModel): ModelSource {
  return { model: async () => model, release: async () => {} };
}

const shared = new Map<string, { users: number; loading?: Promise<Learner> }>();

function sharedModel(name: string, options: LearnerOptions): ModelSource {
  const key = JSON.stringify([existsSync(name) ? resolve(name) : name, options]);
  const entry = shared.get(key) ?? { users: 0 };
  shared.set(key, entry);
  entry.users++;
  const load = async (): Promise<Learner> => {
    // Whoever asks no model in this process needs no libtorch.
    const { Learner } = await import("../learner/learner.ts");
    return Learner.load(name, options);
  };
  return {
    model: () => {
      entry.loading ??= load();
      return entry.loading;
    },
    async release() {
      if (--entry.users > 0) return;
      shared.delete(key);
      // One that could not be loaded said so to whoever asked.
      await entry.loading?.then(
        (learner) => learner.dispose(),
        () => {},
      );
    },
  };
}
