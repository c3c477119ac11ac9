/** The shape of a model, as needed for memory and time. Read from config.json, without weights. */

import { existsSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { shippedModel, shippedModels } from "../hub/resolve-model.ts";
import type { AdapterOptions } from "../learner/options.ts";
import { callNative } from "../native/call-native.ts";
import { loadAddon } from "../native/load.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { learnerDirectory } from "../run/checkpoints.ts";
import { isRun } from "../run/description.ts";
import { gemma4Layers } from "./gemma4-shape.ts";
import type { DeltaShape, ExpertsShape, LayerAttention, ModelShape } from "./model-shape.ts";

export type { ModelShape } from "./model-shape.ts";

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
  "Llama-3.2-3B-Instruct": {
    ...plain,
    ...{ layers: 28, hidden: 3072, intermediate: 8192, heads: 24, kvHeads: 8, headDim: 128 },
    ...{ vocabulary: 128_256, tied: true, maxPositions: 131_072 },
  },
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

/** Whether `findShape` knows a model by its name alone. */
export function hasKnownShape(model: string): boolean {
  return basename(model) in publicModels || shippedModel(model) !== undefined;
}

/**
 * The shape of a recipe's `model`: of a new model's configuration, of the config.json of a run, a
 * directory or a shipped model, of a .gguf file, or of a known public model.
 * @throws NlacError ERR_MODEL_NOT_FOUND if it is none of these, ERR_MODEL_FORMAT for an incomplete
 *   config.json; what `loadAddon` throws, for a .gguf file
 */
export function findShape(model: string | { config: Record<string, unknown> }): ModelShape {
  if (typeof model !== "string") return shapeOf(model.config, "the recipe's model");
  const directory = isRun(model)
    ? learnerDirectory(model)
    : existsSync(model)
      ? model
      : (shippedModel(model) ?? model);
  if (directory.endsWith(".gguf") && existsSync(directory)) {
    const config = callNative(() => loadAddon({ device: "cpu" }).ggufConfig(directory));
    return shapeOf(JSON.parse(config) as Record<string, unknown>, directory);
  }
  const path = join(directory, "config.json");
  if (existsSync(path)) return shapeOf(readConfig(path), path);
  const shape = publicModels[basename(model)];
  if (shape !== undefined) return shape;
  throw new NlacError(
    "ERR_MODEL_NOT_FOUND",
    `${model} is not a directory with a config.json, a .gguf file, a run, or one of ${[...shippedModels(), ...Object.keys(publicModels)].join(", ")}.`,
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

/** What a config.json may omit or does not say, by model_type. */
interface FamilyShape {
  defaults?: Record<string, unknown>;
  qkNorm?: ModelShape["qkNorm"];
  norms?: number;
  normsAfter?: boolean;
  /** Every layer but each `pattern`-th has a window, unless layer_types says otherwise. */
  pattern?: number;
}

const familyShapes: Readonly<Record<string, FamilyShape>> = {
  qwen3: { defaults: { head_dim: 128 }, qkNorm: true },
  qwen3_5_text: { defaults: { head_dim: 256 }, qkNorm: true },
  qwen3_5_moe_text: { defaults: { head_dim: 256, intermediate_size: 512 }, qkNorm: true },
  qwen3_moe: { qkNorm: true },
  smollm3: { defaults: { tie_word_embeddings: true } },
  mistral: { defaults: { sliding_window: 4096 }, pattern: Number.POSITIVE_INFINITY },
  ministral3: { defaults: { head_dim: 128 }, pattern: Number.POSITIVE_INFINITY },
  olmo3: { defaults: { sliding_window: 4096 }, qkNorm: "whole", normsAfter: true, pattern: 4 },
  gemma3_text: {
    defaults: {
      ...{ vocab_size: 262_208, num_attention_heads: 8, num_key_value_heads: 4, head_dim: 256 },
      ...{ max_position_embeddings: 131_072, tie_word_embeddings: true, sliding_window: 4096 },
    },
    qkNorm: true,
    norms: 4,
    normsAfter: true,
    pattern: 6,
  },
  gemma4_text: {
    defaults: {
      ...{ vocab_size: 262_144, hidden_size: 2304, intermediate_size: 9216, num_hidden_layers: 30 },
      ...{ num_attention_heads: 8, num_key_value_heads: 4, head_dim: 256 },
      ...{ max_position_embeddings: 131_072, tie_word_embeddings: true },
    },
    qkNorm: true,
    norms: 4,
    normsAfter: true,
  },
  gpt_oss: {
    defaults: {
      ...{ vocab_size: 201_088, hidden_size: 2880, intermediate_size: 2880, num_hidden_layers: 36 },
      ...{ num_attention_heads: 64, num_key_value_heads: 8, head_dim: 64, attention_bias: true },
      ...{ max_position_embeddings: 131_072, sliding_window: 128, num_experts_per_tok: 4 },
    },
    pattern: 2,
  },
};

/** The shape in a Hugging Face config.json; errors name `source`. Throws ERR_MODEL_FORMAT. */
function shapeOf(given: Record<string, unknown>, source: string): ModelShape {
  // A model of text and images has its text model's configuration inside.
  const text = given.text_config as Record<string, unknown> | undefined;
  const type = text?.model_type ?? given.model_type ?? typeOfArchitecture(given);
  const family = familyShapes[String(type)] ?? {};
  const config: Record<string, unknown> = { ...family.defaults };
  if (text !== undefined)
    config.tie_word_embeddings = given.tie_word_embeddings ?? config.tie_word_embeddings;
  for (const [key, value] of Object.entries(text ?? given)) {
    if (value !== null || key === "sliding_window") config[key] = value;
  }
  const whole = (key: string, otherwise?: number): number => {
    const value = config[key] ?? otherwise;
    if (Number.isInteger(value) && (value as number) > 0) return value as number;
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `${source}: ${key} is ${JSON.stringify(value)}, not a whole number.`,
    );
  };
  const heads = whole("num_attention_heads");
  const hidden = whole("hidden_size");
  const layers = whole("num_hidden_layers");
  const attentionBias = type !== "qwen2" && config.attention_bias === true;
  const ofQwen35 = type === "qwen3_5_text" || type === "qwen3_5_moe_text";
  return {
    layers,
    hidden,
    intermediate: whole("intermediate_size"),
    heads,
    kvHeads: whole("num_key_value_heads", heads),
    headDim: whole("head_dim", hidden / heads),
    vocabulary: whole("vocab_size"),
    tied: config.tie_word_embeddings === true,
    qkvBias: type === "qwen2" || attentionBias,
    outputBias: attentionBias,
    mlpBias: (type === "llama" || type === "smollm3") && config.mlp_bias === true,
    qkNorm: family.qkNorm ?? false,
    norms: family.norms ?? 2,
    normsAfter: family.normsAfter ?? false,
    windows: windowsOf(config, layers, family),
    maxPositions: whole("max_position_embeddings"),
    ...(ofQwen35 && { gatedAttention: true, delta: deltaOf(config, whole) }),
    ...(type === "gemma4_text" && gemma4Layers(config, whole)),
    ...(type === "qwen3_moe" && { experts: expertsOf(config, whole, [128, 768]) }),
    ...(type === "gpt_oss" && {
      sinks: true,
      experts: { ...expertsOf(config, whole, [128, whole("intermediate_size")]), biased: true },
    }),
    ...(type === "qwen3_5_moe_text" && {
      experts: {
        ...expertsOf(config, whole, [256, 512]),
        shared: whole("shared_expert_intermediate_size", 512),
      },
    }),
  };
}

/** model_type of a config.json that has only `architectures`. */
function typeOfArchitecture({ architectures }: Record<string, unknown>): string {
  const name = Array.isArray(architectures) ? String(architectures[0]) : "";
  const type = name.replace(/ForCausalLM$/, "").toLowerCase();
  if (type === "qwen3moe") return "qwen3_moe";
  if (type === "qwen3_5moe") return "qwen3_5_moe_text";
  if (type === "gptoss") return "gpt_oss";
  return ["gemma3", "gemma4", "qwen3_5"].includes(type) ? `${type}_text` : type;
}

function windowsOf(config: Record<string, unknown>, layers: number, { pattern }: FamilyShape): number[] {
  const window = config.sliding_window;
  const off = config.model_type === "smollm3" && config.use_sliding_window !== true;
  if (typeof window !== "number" || off || (pattern === undefined && !Array.isArray(config.layer_types)))
    return [];
  const types = Array.isArray(config.layer_types)
    ? config.layer_types
    : Array.from({ length: layers }, (_, l) => ((l + 1) % (pattern ?? 1) === 0 ? "" : "sliding_attention"));
  return types.filter((type) => type === "sliding_attention").map(() => window);
}

function expertsOf(
  config: Record<string, unknown>,
  whole: (key: string, otherwise?: number) => number,
  [count, intermediate]: [number, number],
): ExpertsShape {
  const step = whole("decoder_sparse_step", 1);
  const dense = new Set(Array.isArray(config.mlp_only_layers) ? config.mlp_only_layers : []);
  const layers = Array.from({ length: whole("num_hidden_layers") }, (_, l) => l);
  return {
    // transformers 5 writes num_local_experts, earlier versions num_experts.
    count: whole(config.num_experts === undefined ? "num_local_experts" : "num_experts", count),
    layers: layers.filter((l) => !dense.has(l) && (l + 1) % step === 0).length,
    perToken: whole("num_experts_per_tok", 8),
    intermediate: whole("moe_intermediate_size", intermediate),
    shared: 0,
  };
}

function deltaOf(
  config: Record<string, unknown>,
  whole: (key: string, otherwise?: number) => number,
): DeltaShape {
  const layers = whole("num_hidden_layers");
  const types = config.layer_types as readonly unknown[] | undefined;
  const interval = whole("full_attention_interval", 4);
  return {
    layers:
      types?.filter((type) => type === "linear_attention").length ?? layers - Math.floor(layers / interval),
    keyHeads: whole("linear_num_key_heads", 16),
    heads: whole("linear_num_value_heads", 32),
    keyDim: whole("linear_key_head_dim", 128),
    valueDim: whole("linear_value_head_dim", 128),
    kernel: whole("linear_conv_kernel_dim", 4),
  };
}

/** Layers that have keys and values. */
export function attentionLayers({ layers, delta }: ModelShape): number {
  return layers - (delta?.layers ?? 0);
}
/**
 * Widths of a gated delta net: of its values, of its convolution, and of its whole input
 * projection.
 */
export function deltaWidths({ keyHeads, heads, keyDim, valueDim }: DeltaShape) {
  const values = heads * valueDim;
  const channels = 2 * keyHeads * keyDim + values;
  return { values, channels, projected: channels + values + 2 * heads };
}

/** Attention of each layer that has one. */
function attentions(shape: ModelShape): readonly LayerAttention[] {
  const { headDim, kvHeads } = shape;
  return (
    shape.attention ??
    Array.from({ length: attentionLayers(shape) }, () => ({ headDim, kvHeads, keys: true, values: true }))
  );
}

/** The sum of `size` over the layers with attention. */
function overAttention(shape: ModelShape, size: (layer: LayerAttention) => number): number {
  return attentions(shape).reduce((sum, layer) => sum + size(layer), 0);
}

/** Widths of the MLPs of all layers that have one, without experts. */
function mlpWidths({ layers, intermediate, experts, intermediates }: ModelShape): readonly number[] {
  return intermediates ?? Array.from({ length: layers - (experts?.layers ?? 0) }, () => intermediate);
}
/** The widest MLP. */
export function widestMlp(shape: ModelShape): number {
  return Math.max(0, ...mlpWidths(shape));
}

/**
 * Total width of the query heads, and of the key or value heads: of layers that differ, on average.
 * Keys that a layer borrows have no width.
 */
export function queryWidth(shape: ModelShape): number {
  if (shape.attention === undefined) return shape.heads * shape.headDim;
  return overAttention(shape, ({ headDim }) => shape.heads * headDim) / attentionLayers(shape);
}
export function keyWidth(shape: ModelShape): number {
  if (shape.attention === undefined) return shape.kvHeads * shape.headDim;
  return overAttention(shape, ownKeys) / attentionLayers(shape);
}
function ownKeys({ headDim, kvHeads, keys }: LayerAttention): number {
  return keys ? kvHeads * headDim : 0;
}
function ownValues({ headDim, kvHeads, values }: LayerAttention): number {
  return values ? kvHeads * headDim : 0;
}

/** Parameters outside of the layers from which their inputs are made. */
export function layerInputTables({ layers, hidden, layerInputs }: ModelShape): number {
  if (layerInputs === undefined) return 0;
  const { size, vocabulary } = layerInputs;
  return layers * size * (vocabulary + hidden) + size;
}

/** Parameters of additional heads: a value head, or twin Q heads with their values. */
export function headCount(algorithm: Recipe["algorithm"], { hidden, vocabulary }: ModelShape): number {
  if (algorithm === "ppo" || algorithm === "archer") return hidden + 1;
  return algorithm === "sac" ? 2 * (vocabulary + 1) * hidden : 0;
}

/** Entries of the matrices of all layers: all, or with `active` those that one token uses. */
function allMatrices(shape: ModelShape, active = false): number {
  const { layers, hidden, delta, experts, layerInputs } = shape;
  const attention = overAttention(shape, (layer) => {
    const query = shape.heads * layer.headDim;
    const queries = shape.gatedAttention ? 2 * query : query;
    return hidden * (queries + ownKeys(layer) + ownValues(layer) + query);
  });
  const widths = delta === undefined ? undefined : deltaWidths(delta);
  const net = widths === undefined ? 0 : hidden * (widths.projected + widths.values);
  const dense = 3 * hidden * mlpWidths(shape).reduce((sum, width) => sum + width, 0);
  // Each layer's gate and projection, and its part of the projection of the embeddings.
  const inputs = 3 * layers * hidden * (layerInputs?.size ?? 0);
  const used = active ? experts?.perToken : experts?.count;
  const ofShared = experts?.shared ? 3 * experts.shared + 1 : 0;
  const mixture =
    experts === undefined
      ? 0
      : experts.layers * hidden * (experts.count + 3 * (used as number) * experts.intermediate + ofShared);
  return dense + mixture + attention + inputs + (delta?.layers ?? 0) * net;
}

/** Entries of the matrices of one layer, of several kinds on average. */
export function layerMatrices(shape: ModelShape): number {
  return allMatrices(shape) / shape.layers;
}

/** The same without the experts that a token does not use; each entry is used once per token. */
export function activeLayerMatrices(shape: ModelShape): number {
  return allMatrices(shape, true) / shape.layers;
}

/** Parameters that one token uses: all, except those of experts that it does not use. */
export function activeParameterCount(shape: ModelShape): number {
  const { layers, experts } = shape;
  const matrices = layers * (layerMatrices(shape) - activeLayerMatrices(shape));
  const unused = experts === undefined ? 0 : experts.layers * (experts.count - experts.perToken);
  return parameterCount(shape) - matrices - unused * expertBiases(shape);
}

/** Biases of one expert. */
function expertBiases({ experts, hidden }: ModelShape): number {
  return experts?.biased === true ? 2 * experts.intermediate + hidden : 0;
}

export function parameterCount(shape: ModelShape): number {
  const { layers, hidden, vocabulary, tied, delta, experts, layerInputs } = shape;
  const ofAttention = overAttention(shape, (layer) => {
    const query = shape.heads * layer.headDim;
    const queries = query * (shape.gatedAttention ? 2 : 1);
    const keys = ownKeys(layer);
    const ofNorms = shape.qkNorm === "whole" ? query + keys : (layer.keys ? 2 : 1) * layer.headDim;
    return (
      (shape.qkvBias ? queries + keys + ownValues(layer) : 0) +
      (shape.outputBias ? hidden : 0) +
      (shape.sinks ? shape.heads : 0) +
      (shape.qkNorm ? ofNorms : 0)
    );
  });
  const ofNet =
    delta === undefined ? 0 : deltaWidths(delta).channels * delta.kernel + 2 * delta.heads + delta.valueDim;
  const ofAll =
    ((shape.norms ?? 2) + (layerInputs === undefined ? 0 : 1)) * hidden + (shape.layerScalars ? 1 : 0);
  const ofMlps = mlpWidths(shape).reduce((sum, width) => sum + 2 * width + hidden, 0);
  const ofExperts = experts?.biased === true ? experts.layers * experts.count * (1 + expertBiases(shape)) : 0;
  const ofRouters = experts?.beside === true ? experts.layers * (hidden + experts.count) : 0;
  const vectors =
    ofAttention +
    ofExperts +
    ofRouters +
    (delta?.layers ?? 0) * ofNet +
    layers * ofAll +
    (shape.mlpBias ? ofMlps : 0) +
    (layerInputs === undefined ? 0 : layerInputs.size * (1 + layers * layerInputs.vocabulary)) +
    hidden;
  return allMatrices(shape) + vectors + (tied ? 1 : 2) * vocabulary * hidden;
}

/**
 * Parameters of the adapters: rank · (inputs + outputs) of each target matrix, each expert's
 * included; default: all that can be adapted.
 */
export function adapterCount(
  shape: ModelShape,
  { rank, targets }: Pick<AdapterOptions, "rank" | "targets">,
): number {
  const { hidden, delta, experts } = shape;
  const ofAttention = (layer: LayerAttention): Record<string, number> => {
    const query = shape.heads * layer.headDim;
    return {
      q_proj: hidden + (shape.gatedAttention ? 2 * query : query),
      ...(layer.keys && { k_proj: hidden + ownKeys(layer) }),
      ...(layer.values && { v_proj: hidden + ownValues(layer) }),
      o_proj: query + hidden,
    };
  };
  const ofMlp = (width: number): Record<string, number> => ({
    gate_proj: hidden + width,
    up_proj: hidden + width,
    down_proj: width + hidden,
  });
  const { channels, values } = delta === undefined ? { channels: 0, values: 0 } : deltaWidths(delta);
  const ofNet: Record<string, number> = {
    in_proj_qkv: hidden + channels,
    in_proj_z: hidden + values,
    in_proj_b: hidden + (delta?.heads ?? 0),
    in_proj_a: hidden + (delta?.heads ?? 0),
    out_proj: values + hidden,
  };
  const mixtures = experts?.layers ?? 0;
  const parts = [
    ...mlpWidths(shape).map((width) => ["", 1, ofMlp(width)] as const),
    ["experts.", experts?.biased ? 0 : mixtures * (experts?.count ?? 0), ofMlp(experts?.intermediate ?? 0)],
    ["shared_expert.", experts?.shared ? mixtures : 0, ofMlp(experts?.shared ?? 0)],
    ...attentions(shape).map((layer) => ["", 1, ofAttention(layer)] as const),
    ["", delta?.layers ?? 0, ofNet],
  ] as const;
  const wanted = new Set<string>(targets);
  const isTarget = (name: string, owner: string) =>
    targets === undefined || wanted.has(name) || wanted.has(owner + name);
  const count = (owner: string, sides: Record<string, number>) =>
    Object.entries(sides).reduce((sum, [name, size]) => sum + (isTarget(name, owner) ? size : 0), 0);
  return rank * parts.reduce((sum, [owner, times, sides]) => sum + times * count(owner, sides), 0);
}
