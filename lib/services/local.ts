/**
 * A language model in this process as an offline service. Each request is a separate call; the
 * learner batches the concurrent ones, as far as its memory allows. A reply depends only on its own
 * request, with the limits of Learner.generate: on devices other than a CPU, near ties can depend
 * on the batch.
 */

import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { z } from "zod";
import { messageOf, NlacError, throwIfAborted } from "../base/errors.ts";
import { getOrAdd } from "../base/get-or-add.ts";
import { checkConfig } from "../base/validation.ts";
import { nothingUsed } from "../contract/environment.ts";
import type { Learner } from "../learner/learner.ts";
import { type LearnerOptions, recipeFields } from "../learner/options.ts";
import type { Generation } from "../model/language-model.ts";
import { asHeard, type ChatService, replyOf } from "./chat-service.ts";

/** The methods of a learner that a service uses. */
export type LocalModel = Pick<Learner, "render" | "generate" | "maxPositions">;

/** A model in this process, with its settings. */
export interface LocalServiceOptions extends Pick<LearnerOptions, "device" | "dtype" | "int8Generation"> {
  /**
   * A known name, a Hugging Face directory or a .gguf file: loaded at the first request, once for
   * all services of the process that use it. Or a learner, which the caller must dispose of.
   */
  local: string | LocalModel;
  /** Sampling temperature. Default 0. */
  temperature?: number;
  /** Maximum tokens of a reply. Default 512. */
  maxTokens?: number;
  /**
   * Bytes of KV cache for current and past requests: determines the batch size and how much of a
   * growing conversation is not prefilled again. Default: the learner's. 0: one request at a time,
   * without reuse.
   */
  cacheBytes?: number;
}

const optionsSchema = z.strictObject({
  local: z.union([
    z.string().min(1),
    z.custom<LocalModel>((value) => typeof value === "object" && value !== null && "generate" in value),
  ]),
  // Without defaults: the learner's defaults apply.
  device: recipeFields.device.unwrap().optional(),
  dtype: recipeFields.dtype.unwrap().optional(),
  int8Generation: recipeFields.int8Generation.unwrap().optional(),
  temperature: z.number().nonnegative().default(0),
  maxTokens: z.int().positive().default(512),
  cacheBytes: recipeFields.cacheBytes.unwrap().optional(),
});

/** Creates a service without loading the model. Throws ERR_CONFIG for invalid options. */
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
          throw new Error(
            `the prompt has ${tokens.length} tokens, more than the model's context of ${model.maxPositions}.`,
          );
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
        throw new NlacError("ERR_SERVICE", `The service of ${name} failed: ${messageOf(error)}`, {
          cause: error,
        });
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

/** Seed of the request's random stream. */
function seedOf(request: unknown): bigint {
  return createHash("sha256").update(JSON.stringify(request)).digest().readBigUInt64LE();
}

// ------------------------------------------------------------------------------------------ models

/** Source of a service's model. */
interface ModelSource {
  model(): Promise<LocalModel>;
  /** Called once per service. */
  release(): Promise<void>;
}

function givenModel(model: LocalModel): ModelSource {
  return { model: async () => model, release: async () => {} };
}

const shared = new Map<string, { users: number; loading?: Promise<Learner> }>();

function sharedModel(name: string, options: LearnerOptions): ModelSource {
  const key = JSON.stringify([existsSync(name) ? resolve(name) : name, options]);
  const entry = getOrAdd(shared, key, () => ({ users: 0 }));
  entry.users++;
  const load = async (): Promise<Learner> => {
    // Imported lazily: without a local model, libtorch is not needed.
    const { Learner } = await import("../learner/learner.ts");
    return Learner.load(name, options);
  };
  return {
    model: () => {
      const loading = entry.loading ?? load();
      entry.loading = loading;
      // The next request tries again: a download may have failed.
      loading.catch(() => {
        if (entry.loading === loading) delete entry.loading;
      });
      return loading;
    },
    async release() {
      if (--entry.users > 0) return;
      shared.delete(key);
      // A failure to load was reported to the caller.
      await entry.loading?.then(
        (learner) => learner.dispose(),
        () => {},
      );
    },
  };
}
