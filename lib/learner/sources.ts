/**
 * Where a learner comes from: a model's files, a configuration, or a checkpoint; and where it is
 * saved.
 */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { fastestDtype, type LearnerDType } from "../base/dtype.ts";
import { NlacError } from "../base/errors.ts";
import { requireChecksums } from "../files/checksums.ts";
import { readJson } from "../files/disk.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { resolveModel } from "../hub/resolve-model.ts";
import type {
  Addon,
  ModelInfo,
  NativeAdapterOptions,
  NativeLearner,
  NativeLearnerOptions,
} from "../native/addon.ts";
import { callNative } from "../native/call-native.ts";
import { loadAddon } from "../native/load.ts";
import { Tokenizer } from "../tokens/tokenizer.ts";
import {
  type AdapterOptions,
  type CreateOptions,
  checkOptions,
  type LearnerOptions,
  projections,
  qualifiedProjections,
  type ResumeOptions,
  type Settings,
} from "./options.ts";

/** A learner that is being opened: the core's part and the tokenizer load at the same time. */
export interface Source {
  native: Promise<NativeLearner>;
  tokenizer: Promise<Tokenizer | undefined>;
  settings: Settings;
  /** Number of requests that have used a seed derived from the learner's. */
  requests: number;
  /** Name or path of the adapter's model, if it is not saved with the adapter. */
  base?: string | undefined;
}

/** What `save` writes in addition to the core's files. */
const savedSampling = z.strictObject({
  format: z.literal(1),
  seed: z.int().min(0),
  /** Number of requests that have used a seed derived from the learner's. */
  requests: z.int().min(0),
  /** What the learner computed in; absent in checkpoints of earlier versions. */
  dtype: z.enum(["bfloat16", "float32"]).optional(),
  /** Whether tokenizer files belong to the checkpoint. */
  tokenizer: z.boolean(),
  /** What `load` was given, a file or directory as an absolute path; only with an adapter. */
  base: z.string().optional(),
});

type SavedSampling = z.infer<typeof savedSampling>;

const samplingFile = "sampling.json";

export async function fromModel(model: string, options: LearnerOptions): Promise<Source> {
  const settings = checkOptions(options);
  const addon = openAddon(settings);
  const path = await resolveModel(model);
  if (
    !path.endsWith(".gguf") &&
    !["config.json", "learner.json"].some((file) => existsSync(join(path, file)))
  )
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `${path} is not the directory of a model: it has no config.json.`,
    );
  // A run deletes its older checkpoints; for an adapter on one of them the core saves the base too.
  const lasting = !existsSync(join(path, "learner.json"));
  if (!lasting) await requireChecksums(path, "ERR_CHECKPOINT");
  const base = settings.adapter && lasting ? lastingName(model, path) : undefined;
  const native = callNative(() => addon.loadLearner(path, nativeOptions(settings)));
  return { native, tokenizer: readTokenizer(addon, path), settings, requests: 0, base };
}

export function fromConfig(config: object | string, options: CreateOptions): Source {
  const { tokenizer, ...rest } = options;
  const settings = checkOptions(rest);
  const addon = openAddon(settings);
  const json = typeof config === "string" ? config : JSON.stringify(config);
  const native = callNative(() => addon.createLearner(json, BigInt(settings.seed), nativeOptions(settings)));
  return { native, tokenizer: Promise.resolve(tokenizer), settings, requests: 0 };
}

export async function fromCheckpoint(directory: string, options: ResumeOptions): Promise<Source> {
  const { base: elsewhere, verify = true, ...rest } = options;
  const settings = checkOptions(rest);
  if (!existsSync(join(directory, samplingFile)))
    throw new NlacError("ERR_CHECKPOINT", `${directory} is not a saved learner: it has no ${samplingFile}.`);
  if (verify) await requireChecksums(directory, "ERR_CHECKPOINT");
  const saved = readJson(join(directory, samplingFile), savedSampling, "ERR_CHECKPOINT");
  settings.seed = options.seed ?? saved.seed;
  settings.dtype = options.dtype ?? saved.dtype ?? settings.dtype;
  const addon = openAddon(settings);
  const base = saved.base === undefined ? undefined : await findBase(directory, saved.base, elsewhere);
  const path = base?.path ?? "";
  const native = callNative(() => addon.resumeLearner(directory, nativeOptions(settings), path));
  const tokenizer = saved.tokenizer ? Tokenizer.fromDirectory(directory) : Promise.resolve(undefined);
  const readable = tokenizer.catch((error: unknown) => {
    throw new NlacError("ERR_CHECKPOINT", `The tokenizer of ${directory} cannot be read: ${error}`, {
      cause: error,
    });
  });
  return { native, tokenizer: readable, settings, requests: saved.requests, base: base?.name };
}

/**
 * Throws if tokenizer and model do not fit together, or if the heads are not the requested ones.
 * Warns if only a part of the model was loaded.
 */
export function checkLoaded(
  { vocabSize, heads, skippedTensors }: ModelInfo,
  tokenizer: Tokenizer | undefined,
  settings: Source["settings"],
): void {
  // Text never becomes an added token, so the model needs no row for it: Gemma 3 1B has the
  // tokenizer of the models that read images.
  for (let id = vocabSize; id < (tokenizer?.vocabSize ?? 0); id++) {
    if (tokenizer!.addedIds.has(id)) continue;
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `The tokenizer has ${tokenizer!.vocabSize} tokens, but the model only ${vocabSize}.`,
    );
  }
  if (settings.heads !== undefined && settings.heads !== heads) {
    throw new NlacError(
      "ERR_CONFIG",
      `The learner was saved with heads "${heads}", not "${settings.heads}".`,
    );
  }
  if (skippedTensors > 0) {
    process.emitWarning(
      `Only the model's text part was loaded: ${skippedTensors} tensors, for example of a vision tower, were skipped. ` +
        "Checkpoints and exports do not have them.",
    );
  }
}

/** The type that a learner with such options computes in. Loads the addon for "auto". */
export function resolveDtype({ device, dtype }: Pick<Settings, "device" | "dtype">): LearnerDType {
  return dtype === "auto" ? fastestDtype(device, loadAddon({ device }).instructionSet()) : dtype;
}

function openAddon(settings: Settings): Addon {
  const addon = loadAddon({ device: settings.device });
  if (settings.threads !== undefined) addon.setThreads(settings.threads);
  return addon;
}

function nativeOptions(settings: Settings): NativeLearnerOptions {
  // The core knows nothing of `seed`, `maxQueued` and `threads`.
  const { seed, maxQueued: _queued, threads: _threads, expertBalance, ...rest } = settings;
  return {
    ...rest,
    ...(expertBalance !== undefined && { expertBalance: expertBalance === "model" ? -1 : expertBalance }),
    dtype: resolveDtype(settings),
    heads: settings.heads ?? "none",
    adapter: settings.adapter && nativeAdapter(settings.adapter, seed),
    ranks: settings.ranks?.native,
    sharding: settings.sharding === "none" ? 0 : settings.sharding,
  };
}

function nativeAdapter({ rank, alpha, targets }: AdapterOptions, seed: number): NativeAdapterOptions {
  // In one order, because a checkpoint's targets must be those of the options.
  const wanted = [...projections, ...qualifiedProjections].filter((name) => targets?.includes(name));
  return { rank, alpha, targets: targets === undefined ? [...projections] : wanted, seed: BigInt(seed) };
}

/**
 * The name or absolute path by which a model is found again, also from another working directory.
 */
function lastingName(model: string, path: string): string {
  return existsSync(model) ? path : model;
}

/**
 * The model of a checkpoint's adapter: where it was when it was saved, or at one of the
 * alternatives.
 */
async function findBase(
  directory: string,
  saved: string,
  elsewhere: string | undefined,
): Promise<{ name: string; path: string }> {
  const reasons: string[] = [];
  for (const model of new Set([saved, elsewhere ?? saved])) {
    try {
      const path = await resolveModel(model);
      return { name: lastingName(model, path), path };
    } catch (error) {
      reasons.push((error as Error).message);
    }
  }
  throw new NlacError(
    "ERR_CHECKPOINT",
    `The adapter in ${directory} belongs to the model ${saved}, which was not found. Restore it, or name its new location: ` +
      `\`base\` of Learner.resume, the recipe's \`model\` in a run's run.json (delete its field sha256). ${reasons.join(" ")}`,
  );
}

/** A model without a tokenizer takes ids only. */
async function readTokenizer(addon: Addon, path: string): Promise<Tokenizer | undefined> {
  if (path.endsWith(".gguf")) return Tokenizer.fromGguf(callNative(() => addon.ggufMetadata(path)));
  return existsSync(join(path, "tokenizer.json")) ? Tokenizer.fromDirectory(path) : undefined;
}

/** Writes what `fromCheckpoint` needs in addition to the core's files. Throws ERR_IO. */
export function writeSampling(directory: string, sampling: Omit<SavedSampling, "format">): void {
  writeAtomically(join(directory, samplingFile), `${JSON.stringify({ format: 1, ...sampling }, null, 2)}\n`);
}

export function ioError(directory: string, error: unknown): NlacError {
  if (error instanceof NlacError) return error;
  return new NlacError("ERR_IO", `${directory} cannot be written: ${(error as Error).message}`, {
    cause: error,
  });
}
