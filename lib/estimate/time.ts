/**
 * Time of a training: per token and matrix entry, two floating-point operations forward and four
 * backward. Decoding is limited by memory bandwidth, as each step reads all weights and KV caches.
 */

import { estimatedBytes, estimatedDtype } from "../base/dtype.ts";
import type { Recipe } from "../recipe/recipe.ts";
import type { Device } from "./devices.ts";
import { cacheBytesPerToken, cacheCapacity, matrixBytes } from "./memory.ts";
import {
  activeLayerMatrices,
  adapterCount,
  attentionLayers,
  type ModelShape,
  parameterCount,
  queryWidth,
} from "./shape.ts";
import type { GenerationCall, Pass, Work } from "./work.ts";

export interface Spending {
  /** Generated tokens; tokens read as prompts and by losses. */
  generated: number;
  read: number;
  /** Floating-point operations. */
  flops: number;
  /** Seconds, in order of execution. */
  playing: number;
  generation: number;
  training: number;
}

export interface Time {
  /** The whole warm-up. */
  warmup: Spending;
  update: Spending;
  iteration: Spending;
  run: Spending;
}

export function timeOf(recipe: Recipe, shape: ModelShape, work: Work, device: Device): Time {
  const played = sum(work.playing.map((call) => generationCost(recipe, shape, call, device)));
  const generation = sum(work.generation.map((call) => generationCost(recipe, shape, call, device)));
  const trained = sum(work.passes.map((pass) => passCost(recipe, shape, pass, device)));
  const moved = work.updates === 0 ? 0 : work.steps * bytesOfStep + work.averages * bytesOfAverage;
  const update = {
    generated: generation.generated,
    read: generation.read + trained.read,
    flops: generation.flops + trained.flops,
    playing: 0,
    generation: generation.seconds,
    training: trained.seconds + stepSeconds(recipe, shape, device, moved),
  };
  // An average iteration: not all have diagnostics.
  const { diagnosis } = work;
  const diagnosed = sum([
    ...diagnosis.generation.map((call) => generationCost(recipe, shape, call, device)),
    ...(diagnosis.passes ?? []).map((one) => passCost(recipe, shape, one, device)),
  ]);
  const share = diagnosis.times / Math.max(1, work.iterations);
  const iteration = scaled(update, work.updates);
  for (const key of ["generated", "read", "flops"] as const)
    iteration[key] += played[key] + share * diagnosed[key];
  iteration.playing += played.seconds;
  iteration.generation += share * diagnosed.seconds;
  const run = scaled(iteration, work.iterations);
  const { evaluation } = work;
  const evaluated = sum(evaluation.generation.map((call) => generationCost(recipe, shape, call, device)));
  for (const key of ["generated", "read", "flops"] as const) run[key] += evaluation.times * evaluated[key];
  run.playing += evaluation.times * evaluated.seconds;
  const warmed = passCost(recipe, shape, work.warmup.pass, device);
  const warmup = scaled(
    {
      ...{ generated: 0, read: warmed.read, flops: warmed.flops, playing: 0, generation: 0 },
      training: warmed.seconds + stepSeconds(recipe, shape, device, bytesOfStep),
    },
    work.warmup.steps,
  );
  for (const key of ["read", "flops", "training"] as const) run[key] += warmup[key];
  return { warmup, update, iteration, run };
}

export function seconds({ playing, generation, training }: Spending): number {
  return playing + generation + training;
}

interface Cost {
  generated: number;
  read: number;
  flops: number;
  seconds: number;
}

function sum(costs: readonly Cost[]): Cost {
  const total: Cost = { generated: 0, read: 0, flops: 0, seconds: 0 };
  for (const cost of costs)
    for (const key of ["generated", "read", "flops", "seconds"] as const) total[key] += cost[key];
  return total;
}

function scaled(spending: Spending, factor: number): Spending {
  return Object.fromEntries(
    Object.entries(spending).map(([key, value]) => [key, value * factor]),
  ) as unknown as Spending;
}

/** Products of one token with the matrices of all layers. */
function matrixFlops(shape: ModelShape): number {
  return 2 * shape.layers * activeLayerMatrices(shape);
}

/** Forward pass of one token after `seen` tokens, without the head. */
function forwardFlops(shape: ModelShape, seen: number): number {
  const { delta, windows = [] } = shape;
  // A gated delta net reads its state twice and writes it.
  const states = delta === undefined ? 0 : 3 * delta.layers * delta.heads * delta.keyDim * delta.valueDim;
  const attended = windows.reduce((sum, window) => sum + Math.min(seen, window), 0);
  const all = attended + (attentionLayers(shape) - windows.length) * seen;
  return matrixFlops(shape) + 2 * (2 * queryWidth(shape) * all + states);
}

function headFlops({ vocabulary, hidden }: ModelShape): number {
  return 2 * vocabulary * hidden;
}

function computeSeconds({ learner }: Recipe, device: Device, flops: number): number {
  return flops / (device.flops[estimatedDtype(learner.dtype)] * device.reached.flops);
}

function generationCost(recipe: Recipe, shape: ModelShape, call: GenerationCall, device: Device): Cost {
  const { texts, prompt, fresh, generated, times } = call;
  const size = estimatedBytes(recipe.learner.dtype);
  const perToken = cacheBytesPerToken(shape, size);
  // The KV cache holds earlier prompts as far as it has room, which also limits how many texts
  // decode together.
  const found = Math.min(1, recipe.learner.cacheBytes / (texts * cacheCapacity(call) * perToken));
  const turns = Math.min(texts, 1 / found);
  const read = texts * (fresh + (1 - found) * (prompt - fresh));
  const readFlops = read * forwardFlops(shape, prompt / 2);
  const stepFlops = texts * (forwardFlops(shape, prompt + generated / 2) + headFlops(shape));
  const stepBytes = matrixBytes(recipe, shape) * turns + texts * (prompt + generated / 2) * perToken;
  const step = Math.max(
    stepBytes / (device.bandwidth * device.reached.bandwidth),
    computeSeconds(recipe, device, stepFlops),
  );
  return {
    generated: times * texts * generated,
    read: times * read,
    flops: times * (readFlops + generated * stepFlops),
    seconds: times * (computeSeconds(recipe, device, readFlops) + generated * step),
  };
}

function passCost(recipe: Recipe, shape: ModelShape, pass: Pass, device: Device): Cost {
  const { texts, tokens, scored, backward } = pass;
  // The backward pass has two products per forward product; checkpointing repeats the forward pass.
  const times = backward ? (recipe.learner.gradientCheckpointing ? 4 : 3) : 1;
  const body = tokens * forwardFlops(shape, tokens / 2) * times;
  const head = scored * headFlops(shape) * (backward ? 3 : 1);
  // With an adapter, the model's own matrices have no gradient.
  const saved = backward && recipe.learner.adapter !== undefined;
  const frozen = saved ? tokens * matrixFlops(shape) + scored * headFlops(shape) : 0;
  const flops = texts * (body + head - frozen);
  return { generated: 0, read: texts * tokens, flops, seconds: computeSeconds(recipe, device, flops) };
}

/**
 * Bytes per parameter that an AdamW step and an EMA step read and write
 * (native/core/optim/optim.h).
 */
const bytesOfStep = 38;
const bytesOfAverage = 14;

/** One pass over the trained parameters. */
function stepSeconds({ learner }: Recipe, shape: ModelShape, device: Device, bytes: number): number {
  const adapter = learner.adapter;
  const trained = adapter === undefined ? parameterCount(shape) : adapterCount(shape, adapter);
  return (bytes * trained) / (device.bandwidth * device.reached.bandwidth);
}
