/** The shape of a model, as far as memory and time depend on it: read from its config.json, without its weights. */

import { existsSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { shippedModel } from "../hub/resolve-model.ts";
import type { AdapterOptions } from "../learner/options.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { learnerDirectory } from "../run/directory.ts";

export interface ModelShape {
  layers: number;
  hidden: number;
  /** Of the MLP. */
  intermediate: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  vocabulary: number;
  /** One matrix is embedding and head. */
  tied: boolean;
  qkvBias: boolean;
  outputBias: boolean;
  mlpBias: boolean;
  /** Queries and keys are normed (Qwen3). */
  qkNorm: boolean;
  /** Tokens. */
  maxPositions: number;
}

const plain = { qkvBias: false, outputBias: false, mlpBias: false, qkNorm: false };
const qwen2 = {
  ...plain,
  qkvBias: true,
  headDim: 128,
  vocabulary: 151_936,
  tied: true,
  maxPositions: 32_768,
};

/** Models that recipes name, as their published config.json have them: a plan needs no download. */
export const publicModels: Readonly<Record<string, ModelShape>> = {
  "SmolLM2-135M-Instruct": {
    ...plain,
    layers: 30,
    hidden: 576,
    intermediate: 1536,
    heads: 9,
    kvHeads: 3,
    headDim: 64,
    vocabulary: 49_152,
    tied: true,
    maxPositions: 8192,
  },
  "Qwen2.5-0.5B-Instruct": {
    ...qwen2,
    layers: 24,
    hidden: 896,
    intermediate: 4864,
    heads: 14,
    kvHeads: 2,
    headDim: 64,
  },
  "Qwen2.5-1.5B-Instruct": { ...qwen2, layers: 28, hidden: 1536, intermediate: 8960, heads: 12, kvHeads: 2 },
  "Qwen2.5-3B-Instruct": { ...qwen2, layers: 36, hidden: 2048, intermediate: 11_008, heads: 16, kvHeads: 2 },
  "Qwen2.5-7B-Instruct": {
    ...qwen2,
    layers: 28,
    hidden: 3584,
    intermediate: 18_944,
    heads: 28,
    kvHeads: 4,
    vocabulary: 152_064,
    tied: false,
  },
  "QwQ-32B": {
    ...qwen2,
    layers: 64,
    hidden: 5120,
    intermediate: 27_648,
    heads: 40,
    kvHeads: 8,
    vocabulary: 152_064,
    tied: false,
    maxPositions: 40_960,
  },
};

/**
 * Of a recipe's `model`: a new one's configuration, a run's, a directory's or a shipped model's config.json, or a public model's name, at
 * whatever place its directory is to lie.
 * @throws NlacError ERR_MODEL_NOT_FOUND where it is none of these, ERR_MODEL_FORMAT for a config.json that lacks something
 */
export function findShape(model: string | { config: Record<string, unknown> }): ModelShape {
  if (typeof model !== "string") return shapeOf(model.config, "the recipe's model");
  const directory = existsSync(join(model, "run.json"))
    ? learnerDirectory(model)
    : existsSync(model)
      ? model
      : (shippedModel(model) ?? model);
  const path = join(directory, "config.json");
  if (existsSync(path)) return shapeOf(readConfig(path), path);
  const shape = publicModels[basename(model)];
  if (shape !== undefined) return shape;
  throw new NlacError(
    "ERR_MODEL_NOT_FOUND",
    `${model} is no directory with a config.json, no run, and none of ${Object.keys(publicModels).join(", ")}.`,
  );
}

function readConfig(path: string): Record<string, unknown> {
  try {
    return JSON.parse(readFileSync(path, "utf8")) as Record<string, unknown>;
  } catch (error) {
    throw new NlacError("ERR_MODEL_FORMAT", `${path} cannot be read: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

/** Of a Hugging Face config.json; `source` names it in errors. Throws ERR_MODEL_FORMAT. */
function shapeOf(config: Record<string, unknown>, source: string): ModelShape {
  const whole = (key: string, otherwise?: number): number => {
    const value = config[key] ?? otherwise;
    if (Number.isInteger(value) && (value as number) > 0) return value as number;
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `${source}: ${key} is ${JSON.stringify(value)}, no whole number.`,
    );
  };
  const family = config.model_type;
  const heads = whole("num_attention_heads");
  const hidden = whole("hidden_size");
  const attentionBias = family !== "qwen2" && config.attention_bias === true;
  return {
    layers: whole("num_hidden_layers"),
    hidden,
    intermediate: whole("intermediate_size"),
    heads,
    kvHeads: whole("num_key_value_heads", heads),
    headDim: whole("head_dim", family === "qwen3" ? 128 : hidden / heads),
    vocabulary: whole("vocab_size"),
    tied: config.tie_word_embeddings === true,
    qkvBias: family === "qwen2" || attentionBias,
    outputBias: attentionBias,
    mlpBias: family === "llama" && config.mlp_bias === true,
    qkNorm: family === "qwen3",
    maxPositions: whole("max_position_embeddings"),
  };
}

/** Width of all heads' queries, and of their keys or values. */
export function queryWidth({ heads, headDim }: ModelShape): number {
  return heads * headDim;
}
export function keyWidth({ kvHeads, headDim }: ModelShape): number {
  return kvHeads * headDim;
}

/** Parameters of what a method predicts beside tokens: a value, or twin Q of every token and their values. */
export function headCount(algorithm: Recipe["algorithm"], { hidden, vocabulary }: ModelShape): number {
  if (algorithm === "ppo") return hidden + 1;
  return algorithm === "sac" ? 2 * (vocabulary + 1) * hidden : 0;
}

/** Entries of the matrices of one layer: each multiplies every token once. */
export function layerMatrices(shape: ModelShape): number {
  const { hidden, intermediate } = shape;
  const query = queryWidth(shape);
  return hidden * (query + 2 * keyWidth(shape)) + query * hidden + 3 * hidden * intermediate;
}

export function parameterCount(shape: ModelShape): number {
  const { layers, hidden, intermediate, headDim, vocabulary, tied } = shape;
  const biases =
    (shape.qkvBias ? queryWidth(shape) + 2 * keyWidth(shape) : 0) +
    (shape.outputBias ? hidden : 0) +
    (shape.mlpBias ? 2 * intermediate + hidden : 0);
  const norms = 2 * hidden + (shape.qkNorm ? 2 * headDim : 0);
  return layers * (layerMatrices(shape) + biases + norms) + hidden + (tied ? 1 : 2) * vocabulary * hidden;
}

/** Parameters of the adapters: rank · (inputs + outputs) of each matrix they stand beside; by default, of all. */
export function adapterCount(
  shape: ModelShape,
  { rank, targets }: Pick<AdapterOptions, "rank" | "targets">,
): number {
  const { layers, hidden, intermediate } = shape;
  const query = queryWidth(shape);
  const key = keyWidth(shape);
  const sides: Record<string, number> = {
    q_proj: hidden + query,
    k_proj: hidden + key,
    v_proj: hidden + key,
    o_proj: query + hidden,
    gate_proj: hidden + intermediate,
    up_proj: hidden + intermediate,
    down_proj: intermediate + hidden,
  };
  const names = targets ?? Object.keys(sides);
  return layers * rank * names.reduce((sum, name) => sum + (sides[name] ?? 0), 0);
}
