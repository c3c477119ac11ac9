/** The shape of a model, as needed for memory and time. Read from config.json, without weights. */

import { existsSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { shippedModel } from "../hub/resolve-model.ts";
import type { AdapterOptions } from "../learner/options.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { learnerDirectory } from "../run/checkpoints.ts";

export interface ModelShape {
  layers: number;
  hidden: number;
  /** Width of the MLP. */
  intermediate: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  vocabulary: number;
  /** Embedding and head share one matrix. */
  tied: boolean;
  qkvBias: boolean;
  outputBias: boolean;
  mlpBias: boolean;
  /** Queries and keys are normalised (Qwen3). */
  qkNorm: boolean;
  /** Maximum context, tokens. */
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

/** Shapes of public models that recipes use, so that an estimate needs no download. */
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
 * The shape of a recipe's `model`: of a new model's configuration, of the config.json of a run, a
 * directory or a shipped model, or of a known public model.
 * @throws NlacError ERR_MODEL_NOT_FOUND if it is none of these, ERR_MODEL_FORMAT for an incomplete
 *   config.json
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
    `${model} is not a directory with a config.json, not a run, and not one of ${Object.keys(publicModels).join(", ")}.`,
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

/** The shape in a Hugging Face config.json; errors name `source`. Throws ERR_MODEL_FORMAT. */
function shapeOf(config: Record<string, unknown>, source: string): ModelShape {
  const whole = (key: string, otherwise?: number): number => {
    const value = config[key] ?? otherwise;
    if (Number.isInteger(value) && (value as number) > 0) return value as number;
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `${source}: ${key} is ${JSON.stringify(value)}, not a whole number.`,
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

/** Total width of the query heads, and of the key or value heads. */
export function queryWidth({ heads, headDim }: ModelShape): number {
  return heads * headDim;
}
export function keyWidth({ kvHeads, headDim }: ModelShape): number {
  return kvHeads * headDim;
}

/** Parameters of additional heads: a value head, or twin Q heads with their values. */
export function headCount(algorithm: Recipe["algorithm"], { hidden, vocabulary }: ModelShape): number {
  if (algorithm === "ppo") return hidden + 1;
  return algorithm === "sac" ? 2 * (vocabulary + 1) * hidden : 0;
}

/** Entries of the matrices of one layer; each is used once per token. */
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

/** Parameters of the adapters: rank · (inputs + outputs) of each target matrix; default: all. */
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
