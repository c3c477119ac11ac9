/**
 * Estimates the memory and time of a recipe on known devices, from the model's shape and the
 * recipe. docs/paper-recipes.md explains the method and its accuracy.
 */

import { applyChange, parseRecipe, type Recipe } from "../recipe/recipe.ts";
import { type Device, gpus, thisMachine } from "./devices.ts";
import { type Memory, memoryOf } from "./memory.ts";
import { plansOf, type RankPlans } from "./ranks.ts";
import { activeParameterCount, findShape, type ModelShape, parameterCount } from "./shape.ts";
import { type Time, timeOf } from "./time.ts";
import { atLimits, type Play, type Work, workOf } from "./work.ts";

export interface Fit {
  device: Device;
  /** With texts of the assumed lengths, and with every text as long as the recipe allows. */
  assumed: Memory;
  atLimits: Memory;
  time: Time;
}

/** A change that saves memory, and the bytes needed with it and all changes before it. */
export interface Remedy {
  change: string;
  assumed: number;
  atLimits: number;
}

export interface Estimate {
  shape: ModelShape;
  parameters: number;
  /** Those that one token uses; fewer only in a mixture of experts. */
  activeParameters: number;
  work: Work;
  fits: Fit[];
  /** Empty if everything fits on the largest device. */
  remedies: Remedy[];
  /** Several ranks, for a recipe for GPUs. */
  ranks: RankPlans | undefined;
}

/**
 * @param shape of the recipe's model
 * @throws NlacError as `findShape`, without a shape
 */
export function estimate(
  recipe: Recipe,
  play?: Play,
  here: Device = thisMachine(),
  shape: ModelShape = findShape(recipe.model),
): Estimate {
  const work = workOf(recipe, shape, play);
  const fits = [here, ...gpus].map((device) => ({
    device,
    ...memories(recipe, shape, device, play),
    time: timeOf(recipe, shape, work, device),
  }));
  return {
    shape,
    parameters: parameterCount(shape),
    activeParameters: activeParameterCount(shape),
    work,
    fits,
    remedies: remediesOf(recipe, shape, fits, play),
    ranks: recipe.learner.device === "cpu" ? undefined : plansOf(recipe, shape, work),
  };
}

function memories(recipe: Recipe, shape: ModelShape, { kind }: Device, play: Play | undefined) {
  const work = workOf(recipe, shape, play);
  return {
    assumed: memoryOf(recipe, shape, work, kind),
    atLimits: memoryOf(recipe, shape, atLimits(work, recipe, shape), kind),
  };
}

/** The devices that a recipe targets; for a CPU recipe, this machine. */
export function candidates(recipe: Recipe, fits: readonly Fit[]): Fit[] {
  const kind = recipe.learner.device === "cpu" ? "cpu" : "cuda";
  return fits.filter(({ device }) => device.kind === kind);
}

/** Applies changes until the longest texts fit on the largest device, or no change helps. */
function remediesOf(
  recipe: Recipe,
  shape: ModelShape,
  fits: readonly Fit[],
  play: Play | undefined,
): Remedy[] {
  const { device, ...before } = candidates(recipe, fits).reduce((a, b) =>
    a.device.memory >= b.device.memory ? a : b,
  );
  const remedies: Remedy[] = [];
  let changed = recipe;
  let memory: Pick<Fit, "assumed" | "atLimits"> = before;
  for (const steps of changesFor(recipe)) {
    let helped: Remedy | undefined;
    for (const change of steps) {
      if (memory.atLimits.peak <= device.memory) break;
      const next = withChange(changed, change);
      const after = memories(next, shape, device, play);
      // Skip a change that saves next to nothing.
      if (after.atLimits.peak > 0.98 * memory.atLimits.peak) break;
      changed = next;
      memory = after;
      helped = { change, assumed: after.assumed.peak, atLimits: after.atLimits.peak };
    }
    if (helped !== undefined) remedies.push(helped);
  }
  return remedies;
}

/** Changes that save memory, the least costly first; adapters last, because they train less. */
function changesFor(recipe: Recipe): string[][] {
  const { algorithm, config, learner } = recipe;
  return [
    learner.gradientCheckpointing ? [] : ["learner.gradientCheckpointing=true"],
    algorithm === "nlac" && config.optimizerState === "separate" ? ["config.optimizerState=shared"] : [],
    smallerBatches(recipe),
    learner.adapter === undefined ? ['learner.adapter={"rank":16,"alpha":32}'] : [],
  ];
}

function smallerBatches({ algorithm, config }: Recipe): string[] {
  if (!("episodesPerIteration" in config)) return [];
  // The batch of generation: the episodes of an iteration (in groups for GRPO), or NLAC's batch.
  const batch = algorithm === "nlac" && config.batchSize > config.episodesPerIteration;
  const field = batch ? "batchSize" : "episodesPerIteration";
  const texts = config[field];
  const group = algorithm === "grpo" || algorithm === "critique-grpo" ? config.groupSize : 1;
  const fewer: string[] = [];
  for (let count = texts >> 1; count >= group; count >>= 1)
    fewer.push(`config.${field}=${count - (count % group)}`);
  return fewer;
}

function withChange(recipe: Recipe, change: string): Recipe {
  const input = structuredClone(recipe) as unknown as Record<string, unknown>;
  applyChange(input, change);
  return parseRecipe(input, change);
}
