/**
 * Memory of a training, in bytes, derived from the core: native/core/learner.h for persistent data,
 * native/core/model/decoder.cc for activations, native/core/generate for caches.
 */

import { estimatedBytes, estimatedDtype } from "../base/dtype.ts";
import type { Recipe } from "../recipe/recipe.ts";
import type { Device } from "./devices.ts";
import {
  adapterCount,
  attentionLayers,
  deltaWidths,
  headCount,
  keyWidth,
  layerInputTables,
  layerMatrices,
  type ModelShape,
  parameterCount,
  queryWidth,
  widestMlp,
} from "./shape.ts";
import { allGenerationCalls, type GenerationCall, type Work } from "./work.ts";

export interface Part {
  name: string;
  bytes: number;
}

export interface Memory {
  /** Allocated from the first update on. */
  held: Part[];
  /** In addition, during generation and during training; never both. */
  generation: Part[];
  training: Part[];
  /** The maximum at any time. */
  peak: number;
}

/** Node and libtorch, on the host. */
const processBytes = 0.25e9;
/**
 * The losses' workspace (linear_loss.cc; soft_q.cc uses five tensors instead of two), and the
 * scores of blockwise attention (attention.cc), which uses three of them.
 */
const lossWorkspace = { cpu: 76 * 2 ** 20, cuda: 2 ** 30 };
const blockScores = 3 * 128 * 2 ** 20;
/** Tokens per prefill call, and rows of logits at a time (generate/). */
const prefillTokens = 2048;
const logitBytes = { cpu: 64 * 2 ** 20, cuda: 256 * 2 ** 20 };
/** Tokens per block of the KV cache. */
const blockTokens = 16;

/** How ranks share a training. */
export interface Split {
  ranks: number;
  /** `learner.sharding` and, for sharding 3, `learner.layerwiseGeneration`. */
  sharding: Recipe["learner"]["sharding"];
  layerwise?: boolean;
}

const alone: Split = { ranks: 1, sharding: "none" };

/** The memory of one rank, by default the only one. */
export function memoryOf(
  recipe: Recipe,
  shape: ModelShape,
  work: Work,
  device: Device["kind"],
  split: Split = alone,
): Memory {
  const size = estimatedBytes(recipe.learner.dtype);
  const { kept, beyond } = caches(recipe, shape, work, size);
  const held = [...weightParts(recipe, shape, work, size, split), { name: "keys and values", bytes: kept }];
  if (device === "cpu") {
    held.push({ name: "matrices packed for generation", bytes: packedBytes(recipe, shape, work, split) });
    held.push({ name: "Node and libtorch", bytes: processBytes });
  }
  const generation = [
    ...(split.sharding === 3 && !split.layerwise
      ? [{ name: "gathered layers", bytes: dividedBytes(recipe, shape) }]
      : []),
    { name: "keys and values beyond cacheBytes", bytes: beyond },
    {
      name: "activations of reading prompts",
      bytes: logitBytes[device] + prefillTokens * layerBytes(shape, size).kept,
    },
  ];
  const training = trainingParts(recipe, shape, work, size, device);
  const peak = total(held) + Math.max(total(generation), total(training));
  return { held, generation, training, peak };
}

export function total(parts: readonly Part[]): number {
  return parts.reduce((sum, { bytes }) => sum + bytes, 0);
}

function weightParts(
  { learner, algorithm }: Recipe,
  shape: ModelShape,
  work: Work,
  size: number,
  { ranks, sharding }: Split,
): Part[] {
  const whole = parameterCount(shape);
  const adapter = learner.adapter;
  const heads = headCount(algorithm, shape);
  const trained = (adapter === undefined ? whole : adapterCount(shape, adapter)) + heads;
  // In float32 the masters are the copy to compute with.
  const parts = sharding === "none" ? 1 : ranks;
  const layers = layerCount(shape, trained, adapter, heads);
  // Parameters of a copy to compute with; with sharding 3 a part of the layers'.
  const computing = sharding === 3 ? trained - layers + layers / ranks : trained;
  const masters = size === 4 ? computing : trained / parts;
  // With sharding 3, a rank rounds its part of a layer when it sends it.
  const copied = sharding === 3 ? trained - layers : trained;
  const copy = (name: string) =>
    size === 4 ? [] : [{ name: `${name}, bfloat16 copy`, bytes: size * copied }];
  const { moments, averages, references, rewardModels } = work;
  // Its θ, gradients and moments, as for the policy, and with an adapter its own frozen model.
  const frozen = adapter === undefined ? 0 : size * whole;
  const judge = rewardModels * (frozen + 16 * trained + (size === 4 ? 0 : size * trained));
  return [
    ...(adapter === undefined
      ? []
      : [{ name: `the model, ${estimatedDtype(learner.dtype)}`, bytes: size * whole }]),
    { name: "θ, float32", bytes: 4 * masters },
    ...copy("θ"),
    ...(sharding === 3
      ? [{ name: "two layers that are gathered", bytes: (2 * size * layers) / shape.layers }]
      : []),
    {
      name: "gradients, float32",
      bytes:
        4 *
        (sharding === 2 || sharding === 3
          ? trained - layers + layers / ranks + layers / shape.layers + layers / shape.layers / ranks
          : trained),
    },
    {
      name: `AdamW's moments, ${moments === 1 ? "one set" : "two sets"}`,
      bytes: (8 * moments * trained) / parts,
    },
    ...(averages > 0 ? [{ name: "θ̄, float32", bytes: 4 * masters }, ...copy("θ̄")] : []),
    ...(references > 0
      ? [
          {
            name: `${references === 1 ? "the reference" : "two references"}, ${estimatedDtype(learner.dtype)}`,
            bytes: references * size * computing,
          },
        ]
      : []),
    ...(judge === 0 ? [] : [{ name: "the reward model, gradients and moments", bytes: judge }]),
  ];
}

/** Trained parameters of the layers: without embeddings, vocabulary matrix and heads. */
export function layerCount(
  shape: ModelShape,
  trained: number,
  adapter: Recipe["learner"]["adapter"],
  heads: number,
): number {
  const embeddings = shape.hidden * (1 + (shape.tied ? 1 : 2) * shape.vocabulary) + layerInputTables(shape);
  return trained - heads - (adapter === undefined ? embeddings : 0);
}

/** What sharding 3 divides of the weights that generate: their layers, in the type to compute with. */
export function dividedBytes({ learner, algorithm }: Recipe, shape: ModelShape): number {
  const { adapter, dtype } = learner;
  const heads = headCount(algorithm, shape);
  const own = adapter === undefined ? parameterCount(shape) : adapterCount(shape, adapter);
  const size = estimatedBytes(dtype);
  return size * layerCount(shape, own + heads, adapter, heads);
}

/** Bytes of a token's keys and values in all layers. */
export function cacheBytesPerToken(shape: ModelShape, size: number): number {
  return 2 * attentionLayers(shape) * keyWidth(shape) * size;
}

/** Capacity of a sequence's KV cache in tokens: whole blocks for all tokens but the last. */
export function cacheCapacity({ prompt, generated }: Pick<GenerationCall, "prompt" | "generated">): number {
  return Math.ceil(Math.max(prompt + 1, prompt + generated - 1) / blockTokens) * blockTokens;
}

/**
 * For θ and θ̄: the part of `cacheBytes` that the largest call uses, and one text's excess over it.
 */
function caches({ learner }: Recipe, shape: ModelShape, work: Work, size: number) {
  const calls = allGenerationCalls(work);
  const largest = (weights: GenerationCall["weights"], bytes: (call: GenerationCall) => number) =>
    Math.max(0, ...calls.filter((call) => call.weights === weights).map(bytes));
  const ofText = (call: GenerationCall) => cacheCapacity(call) * cacheBytesPerToken(shape, size);
  const kept = (weights: GenerationCall["weights"]) =>
    Math.min(
      learner.cacheBytes,
      largest(weights, (call) => call.texts * ofText(call)),
    );
  const text = Math.max(largest("θ", ofText), largest("θ̄", ofText));
  return { kept: kept("θ") + kept("θ̄"), beyond: Math.max(0, text - learner.cacheBytes) };
}

/**
 * Bytes of the matrices for inference, by default those of all layers; int8 has a float32 scale per
 * 64 values (bf16_kernels.h).
 */
export function matrixBytes({ learner }: Recipe, shape: ModelShape, layers = shape.layers): number {
  const size = learner.int8Generation ? 1 + 4 / 64 : estimatedBytes(learner.dtype);
  return size * (layers * layerMatrices(shape) + shape.vocabulary * shape.hidden);
}

/**
 * On a CPU, inference keeps a packed copy of the matrices of each weight set that generates; layer
 * by layer, of one layer and the vocabulary matrices.
 */
function packedBytes(recipe: Recipe, shape: ModelShape, work: Work, { sharding, layerwise }: Split): number {
  const sets = new Set(allGenerationCalls(work).map(({ weights }) => weights)).size;
  // With an adapter, both weight sets share one model, which is not divided.
  if (recipe.learner.adapter !== undefined) return matrixBytes(recipe, shape) * Math.min(sets, 1);
  if (sharding !== 3 || !layerwise) return matrixBytes(recipe, shape) * sets;
  return sets === 0 ? 0 : matrixBytes(recipe, shape, 1) + (sets - 1) * matrixBytes(recipe, shape, 0);
}

/**
 * Of a gated delta net, per layer and token: projections, output, and the state before each chunk
 * of 64 tokens.
 */
function deltaBytes({ delta }: ModelShape, size: number): number {
  if (delta === undefined) return 0;
  const { projected, values } = deltaWidths(delta);
  return size * (projected + values) + 4 * (values + (delta.keyDim * values) / 64);
}

/**
 * Of a gated delta net on a GPU, per layer and token: temporaries of its backward pass, some 28
 * float32 vectors for each head. The chunks of all texts are computed at once there.
 */
function chunkBytes({ delta }: ModelShape): number {
  return delta === undefined ? 0 : 4 * 28 * delta.heads * Math.max(delta.keyDim, delta.valueDim);
}

/**
 * Of a mixture of experts, per layer and token, beyond the layer's input and middle; as layerBytes.
 */
function expertBytes({ experts, hidden }: ModelShape, size: number) {
  if (experts === undefined) return { kept: 0, backward: 0 };
  const { count, perToken, intermediate, shared } = experts;
  // Probabilities; chosen experts, their weights and places.
  const routing = 4 * count + 28 * perToken;
  return {
    kept: size * 2 * (perToken * intermediate + shared) + routing,
    // Rows of the input, of their gradient and of the output's; of each expert, activations and
    // gradients.
    backward:
      perToken * (size * (3 * hidden + 7 * intermediate) + 4 * intermediate) +
      12 * count +
      (shared > 0 ? (4 * size + 8) * shared + 8 * hidden : 0),
  };
}

/** Per layer and token: its input, data for its backward pass, and temporaries of that pass. */
function layerBytes(shape: ModelShape, size: number) {
  const { hidden, heads, qkNorm } = shape;
  // Layers with an MLP and layers with experts: the larger.
  const intermediate = widestMlp(shape);
  const mixture = expertBytes(shape, size);
  const ofMlp = size * 2 * intermediate;
  const query = queryWidth(shape);
  const projected = (query + 2 * keyWidth(shape)) * (qkNorm ? 2 : 1);
  const inputs = shape.layerInputs?.size ?? 0;
  const input = size * (hidden + inputs);
  const attention = size * (projected + query) + 4 * heads;
  const kept =
    // Both parts' inputs, and their outputs if norms follow them.
    size * (shape.normsAfter ? 4 : 2) * hidden +
    // Of the layer's own inputs: the stream before, the gate beside them, what is projected.
    (inputs > 0 ? size * (2 * hidden + 4 * inputs) : 0) +
    // Experts beside an MLP: both, and their outputs before the norms.
    (shape.experts?.beside ? ofMlp + mixture.kept + size * 2 * hidden : Math.max(ofMlp, mixture.kept)) +
    Math.max(attention, deltaBytes(shape, size));
  // The MLP's backward pass is the largest: activations, their gradients, and float32 operands.
  const backward = size * 3 * hidden + 4 * hidden + Math.max((4 * size + 8) * intermediate, mixture.backward);
  return { input, kept, backward };
}

/**
 * Packed tokens of the largest micro-batch. Texts are not split: a long one is its own micro-batch.
 */
export function microBatchTokens({ learner }: Recipe, work: Work): number {
  const { steps, pass } = work.warmup;
  const passes = steps > 0 ? [...work.passes, pass] : work.passes;
  const longest = Math.max(0, ...passes.map(({ tokens }) => tokens));
  const all = Math.max(0, ...passes.map(({ texts, tokens }) => texts * tokens));
  return Math.max(longest, Math.min(learner.microBatchTokens, all));
}

function trainingParts(
  recipe: Recipe,
  shape: ModelShape,
  work: Work,
  size: number,
  device: Device["kind"],
): Part[] {
  const tokens = microBatchTokens(recipe, work);
  const { input, kept, backward } = layerBytes(shape, size);
  const tape = recipe.learner.gradientCheckpointing ? shape.layers * input + kept : shape.layers * kept;
  const ofLayer = device === "cuda" ? Math.max(backward, chunkBytes(shape)) : backward;
  const workspace = lossWorkspace[device] * (recipe.algorithm === "sac" ? 5 / 2 : 1);
  // The bfloat16 kernels do not store scores; those of a GPU take heads of up to 256 dimensions.
  const headDim = Math.max(shape.headDim, ...(shape.attention ?? []).map((layer) => layer.headDim));
  const stored = size !== 2 || (device === "cuda" && headDim > 256);
  const scores = stored ? Math.min(blockScores, 12 * shape.heads * tokens ** 2) : 0;
  return [
    { name: `activations of ${tokens.toLocaleString("en")} tokens`, bytes: tokens * tape },
    { name: "one layer's backward pass", bytes: tokens * ofLayer + scores },
    { name: "losses", bytes: workspace + 4 * tokens * size * shape.hidden },
  ];
}
