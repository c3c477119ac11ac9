/**
 * Plans of a training over several ranks: which number of ranks and which sharding fit on a device,
 * and what the ranks send each other.
 */

import { estimatedDtype } from "../base/dtype.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { type Device, gpus } from "./devices.ts";
import { layerCount, memoryOf, type Split } from "./memory.ts";
import { adapterCount, headCount, type ModelShape, parameterCount } from "./shape.ts";
import { atLimits, type Work } from "./work.ts";

export interface RankPlan extends Split {
  /** Bytes of one rank, with texts of the assumed lengths and as long as the recipe allows. */
  assumed: number;
  atLimits: number;
  /** Bytes that each rank sends for one optimizer step. */
  sent: number;
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
}

const plannedDevice = "H100";
const rankCounts = [1, 2, 4, 8, 16, 32];
const stages = ["none", 1, 2, 3] as const;

export function plansOf(recipe: Recipe, shape: ModelShape, work: Work): RankPlans {
  const device = gpus.find(({ name }) => name === plannedDevice)!;
  const limits = atLimits(work, recipe, shape);
  const plans = rankCounts.flatMap((ranks) =>
    stages.map((sharding): RankPlan => {
      const split = { ranks, sharding };
      return {
        ...split,
        assumed: memoryOf(recipe, shape, work, device.kind, split).peak,
        atLimits: memoryOf(recipe, shape, limits, device.kind, split).peak,
        sent: sentPerStep(recipe, shape, split),
      };
    }),
  );
  const larger = gpus.filter(({ memory }) => memory > device.memory).sort((a, b) => a.memory - b.memory);
  const fewest = [device, ...larger].flatMap((card) => {
    const plan = plans.find((one) => one.atLimits <= card.memory);
    return plan === undefined ? [] : [{ device: card, plan }];
  })[0];
  return { device, plans, fewest };
}

/**
 * A ring all-reduce sends each byte of the float32 gradients nearly twice. With sharding it is a
 * reduce-scatter, which sends them once, and a collection of θ's copy and, at worst in every step,
 * of θ̄'s. With sharding 2 the layers' gradients are sent once per micro-batch, here one. With
 * sharding 3 that is also true of the layers' parameters: for θ's forward and backward pass, and
 * for θ̄'s forward pass. What generation gathers is not counted, because many steps may share it.
 */
function sentPerStep({ learner, algorithm }: Recipe, shape: ModelShape, { ranks, sharding }: Split): number {
  const { adapter, dtype } = learner;
  const heads = headCount(algorithm, shape);
  const trained = (adapter === undefined ? parameterCount(shape) : adapterCount(shape, adapter)) + heads;
  const share = (ranks - 1) / ranks;
  if (sharding === "none") return 2 * share * 4 * trained;
  const size = estimatedDtype(dtype) === "float32" ? 4 : 2;
  const layers = sharding === 3 ? layerCount(shape, trained, adapter, heads) : 0;
  return share * (4 * trained + 2 * size * (trained - layers) + 3 * size * layers);
}
