/** Opens the model for a command: the newest checkpoint of a run, or any other model. */

import { Learner } from "../learner/learner.ts";
import type { LearnerOptions } from "../learner/options.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { baseOf, recipeIfRun } from "../recipe/run-recipe.ts";
import { learnerDirectory } from "../run/checkpoints.ts";

/** The options of a learner that commands have flags for. */
export const modelFlags = ["device", "dtype", "int8Generation", "seed"] as const;

export type ModelFlags = Pick<LearnerOptions, (typeof modelFlags)[number]> & { seed: number };

export interface OpenedModel {
  learner: Learner;
  /** The run's recipe; undefined for other models. */
  recipe?: Recipe;
}

export async function openModel(runOrModel: string, flags: ModelFlags): Promise<OpenedModel> {
  // A flag that was not given must not hide what a recipe says.
  const given = Object.fromEntries(
    modelFlags.flatMap((name) => (flags[name] === undefined ? [] : [[name, flags[name]]])),
  );
  const recipe = recipeIfRun(runOrModel);
  if (recipe === undefined) return { learner: await Learner.load(runOrModel, given) };
  // int8 generation is a setting of the training, not a property of the trained model.
  const options = { ...recipe.learner, int8Generation: false, ...given, base: baseOf(recipe) };
  return { learner: await Learner.resume(learnerDirectory(runOrModel), options), recipe };
}
