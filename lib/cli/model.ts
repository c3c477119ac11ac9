/** Opens the model for a command: the newest checkpoint of a run, or any other model. */

import { existsSync } from "node:fs";
import { join } from "node:path";
import type { DTypeOption } from "../base/dtype.ts";
import { Learner } from "../learner/learner.ts";
import { parseRecipe, type Recipe } from "../recipe/recipe.ts";
import { learnerDirectory, readDescription } from "../run/directory.ts";

export interface ModelFlags {
  device?: string;
  dtype?: DTypeOption;
  int8Generation?: boolean;
  seed: number;
}

export interface OpenedModel {
  learner: Learner;
  /** The run's recipe; undefined for other models. */
  recipe?: Recipe;
}

export async function openModel(runOrModel: string, flags: ModelFlags): Promise<OpenedModel> {
  const { device, dtype, int8Generation, seed } = flags;
  const given = defined({ device, dtype, int8Generation, seed });
  const recipe = recipeIfRun(runOrModel);
  if (recipe === undefined) return { learner: await Learner.load(runOrModel, given) };
  // int8 generation is a setting of the training, not a property of the trained model.
  const options = { ...recipe.learner, int8Generation: false, ...given, base: baseOf(recipe) };
  return { learner: await Learner.resume(learnerDirectory(runOrModel), options), recipe };
}

/** Without undefined entries, which would override the recipe's settings. */
function defined(flags: ModelFlags): Partial<ModelFlags> {
  return Object.fromEntries(Object.entries(flags).filter(([, value]) => value !== undefined));
}

/** An alternative location of the base model, in case an adapter's base was moved. */
export function baseOf({ model }: Recipe): string | undefined {
  return typeof model === "string" ? model : undefined;
}

/** The recipe that a run was started with. Throws ERR_RUN, ERR_CONFIG. */
export function recipeOf(run: string): Recipe {
  return parseRecipe(readDescription(run).recipe, run);
}

/** The recipe if `runOrModel` is a run, else undefined. Throws ERR_RUN, ERR_CONFIG. */
export function recipeIfRun(runOrModel: string): Recipe | undefined {
  return existsSync(join(runOrModel, "run.json")) ? recipeOf(runOrModel) : undefined;
}
