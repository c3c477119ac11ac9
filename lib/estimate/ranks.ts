/**
 * Plans of a training over several ranks: which number of ranks and which sharding fit on a device,
 * and what the ranks send each other.
 */

import { estimatedBytes } from "../base/dtype.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { type Device, gpus, links } from "./devices.ts";
import { dividedBytes, layerCount, memoryOf, type Split } from "./memory.ts";
import { adapterCount, headCount, type ModelShape, parameterCount } from "./shape.ts";
import { atLimits, type Work } from "./work.ts";

export interface RankPlan extends Split {
  /** Bytes of one rank, with texts of the assumed lengths and as long as the recipe allows. */
  assumed: number;
  atLimits: number;
  /** Bytes that each rank sends for one optimizer step. */
  sent: number;
  /**
   * Bytes that each rank sends in generation, with sharding 3: for each change of the weights, or
   * layer by layer for each step of the engine. A step generates a token of every running text, or
   * reads up to 2,048 tokens of prompts.
   */
  gathered: number;
}

export interface RankPlans {
  /** The card that most clusters have. */
  device: Device;
  plans: RankPlan[];
  /**
   * The fewest ranks that fit at the limits on `device`, or else on the smallest larger card on
   * which any do; undefined if there is none.
   */
  fewest: { device: Device; plan: RankPlan } | undefined;
  /** The fewest ranks that fit on `device` with texts of the assumed lengths. */
  fewestAssumed: RankPlan | undefined;
}

const plannedDevice = "H100";
const rankCounts = [1, 2, 4, 8, 16, 32];
const stages: readonly Omit<Split, "ranks">[] = [
  { sharding: "none" },
  { sharding: 1 },
  { sharding: 2 },
  { sharding: 3 },
  { sharding: 3, layerwise: true },
];

export function plansOf(recipe: Recipe, shape: ModelShape, work: Work): RankPlans {
  const device = gpus.find(({ name }) => name === plannedDevice)!;
  const limits = atLimits(work, recipe, shape);
  const plans = rankCounts.flatMap((ranks) =>
    stages.map((stage): RankPlan => {
      const split = { ranks, ...stage };
      return {
        ...split,
        assumed: memoryOf(recipe, shape, work, device.kind, split).peak,
        atLimits: memoryOf(recipe, shape, limits, device.kind, split).peak,
        sent: sentPerStep(recipe, shape, split),
        gathered: gatheredBytes(recipe, shape, split),
      };
    }),
  );
  const larger = gpus.filter(({ memory }) => memory > device.memory).sort((a, b) => a.memory - b.memory);
  const fewest = [device, ...larger].flatMap((card) => {
    const plan = plans.find((one) => one.atLimits <= card.memory);
    return plan === undefined ? [] : [{ device: card, plan }];
  })[0];
  const fewestAssumed = plans.find(({ assumed }) => assumed <= device.memory);
  return { device, plans, fewest, fewestAssumed };
}

/** Seconds in which each of `ranks` GPUs sends and receives `bytes`. */
export function linkSeconds(ranks: number, bytes: number): number {
  return bytes / (links.reached * (ranks <= links.gpusPerMachine ? links.machine : links.network));
}

/** Bytes that each rank sends to complete the layers once. */
export function gatheredBytes(recipe: Recipe, shape: ModelShape, { ranks, sharding }: Split): number {
  return sharding === 3 ? ((ranks - 1) / ranks) * dividedBytes(recipe, shape) : 0;
}

/**
 * A ring all-reduce sends each byte of the float32 gradients nearly twice. With sharding it is a
 * reduce-scatter, which sends them once, and a collection of θ's copy and, at worst in every step,
 * of θ̄'s. With sharding 2 the layers' gradients are sent once per micro-batch, here one. With
 * sharding 3 that is also true of the layers' parameters: for θ's forward and backward pass, and
 * for θ̄'s forward pass. What generation gathers is counted apart.
 */
function sentPerStep({ learner, algorithm }: Recipe, shape: ModelShape, { ranks, sharding }: Split): number {
  const { adapter, dtype } = learner;
  const heads = headCount(algorithm, shape);
  const trained = (adapter === undefined ? parameterCount(shape) : adapterCount(shape, adapter)) + heads;
  const share = (ranks - 1) / ranks;
  if (sharding === "none") return 2 * share * 4 * trained;
  const size = estimatedBytes(dtype);
  const layers = sharding === 3 ? layerCount(shape, trained, adapter, heads) : 0;
  return share * (4 * trained + 2 * size * (trained - layers) + 3 * size * layers);
}
