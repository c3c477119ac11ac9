/** What `eval`, `play`, `generate` and `export` take: a run's newest checkpoint, or any model. */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { Learner } from "../learner/learner.ts";
import type { LearnerOptions } from "../learner/options.ts";
import { parseRecipe, type Recipe } from "../recipe/recipe.ts";
import { learnerDirectory, readDescription } from "../run/directory.ts";

/** The options of a learner that commands have flags for. */
export const modelFlags = ["device", "dtype", "int8Generation", "seed"] as const;

export type ModelFlags = Pick<LearnerOptions, (typeof modelFlags)[number]> & { seed: number };

export interface OpenedModel {
  learner: Learner;
  /** The recipe, when a run was named. */
  recipe?: Recipe;
}

export async function openModel(runOrModel: string, flags: ModelFlags): Promise<OpenedModel> {
  // A flag that was not given must not hide what a recipe says.
  const given = Object.fromEntries(
    modelFlags.flatMap((name) => (flags[name] === undefined ? [] : [[name, flags[name]]])),
  );
  const recipe = recipeIfRun(runOrModel);
  if (recipe === undefined) return { learner: await Learner.load(runOrModel, given) };
  // How a run generated to train is no part of what it learned.
  const options = { ...recipe.learner, int8Generation: false, ...given, base: baseOf(recipe) };
  return { learner: await Learner.resume(learnerDirectory(runOrModel), options), recipe };
}

/** Where the model of a run's adapter may be, if not where the run found it. */
export function baseOf({ model }: Recipe): string | undefined {
  return typeof model === "string" ? model : undefined;
}

/** The recipe that a run was started with. Throws ERR_RUN, ERR_CONFIG. */
export function recipeOf(run: string): Recipe {
  return parseRecipe(readDescription(run).recipe, run);
}

/** The same of what may be a run: undefined of any other model. Throws ERR_RUN, ERR_CONFIG. */
export function recipeIfRun(runOrModel: string): Recipe | undefined {
  return existsSync(join(runOrModel, "run.json")) ? recipeOf(runOrModel) : undefined;
}
