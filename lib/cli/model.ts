/** Opens the model for a command: the newest checkpoint of a run, or any other model. */

import { NlacError } from "../base/errors.ts";
import { Learner } from "../learner/learner.ts";
import type { LearnerOptions } from "../learner/options.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { baseOf, recipeIfRun, recipeOf } from "../recipe/run-recipe.ts";
import { learnerDirectory, rewardModelDirectory } from "../run/checkpoints.ts";
import { isRun } from "../run/description.ts";

/** The options of a learner that commands have flags for. */
const modelFlags = ["device", "dtype", "int8Generation", "seed"] as const;

export type ModelFlags = Pick<LearnerOptions, (typeof modelFlags)[number]> & { seed: number };

export interface OpenedModel {
  learner: Learner;
  /** The run's recipe; undefined for a run without one, and for other models. */
  recipe?: Recipe;
}

export async function openModel(runOrModel: string, flags: Partial<ModelFlags>): Promise<OpenedModel> {
  // A flag that was not given must not hide what a recipe says.
  const given = Object.fromEntries(
    modelFlags.flatMap((name) => (flags[name] === undefined ? [] : [[name, flags[name]]])),
  );
  const recipe = recipeIfRun(runOrModel);
  if (recipe === undefined) {
    if (!isRun(runOrModel)) return { learner: await Learner.load(runOrModel, given) };
    return { learner: await Learner.resume(learnerDirectory(runOrModel), given) };
  }
  // int8 generation is a setting of the training, not a property of the trained model.
  const options = { ...recipe.learner, int8Generation: false, ...given, base: baseOf(recipe) };
  return { learner: await Learner.resume(learnerDirectory(runOrModel), options), recipe };
}

/** Opens the reward model of a run of hope. Throws ERR_RUN if the run has none. */
export async function openRewardModel(
  run: string,
  { device, dtype }: Pick<ModelFlags, "device" | "dtype">,
): Promise<Learner> {
  const recipe = recipeOf(run);
  return Learner.resume(rewardModelDirectory(run), {
    ...recipe.learner,
    ...(device === undefined ? {} : { device }),
    ...(dtype === undefined ? {} : { dtype }),
    int8Generation: false,
    base: baseOf(recipe),
  });
}

/**
 * Opens the reward model of a run of hope, to judge what `player` generates.
 * @throws NlacError ERR_RUN if the run has none, ERR_VALUE for a model with another tokenizer
 */
export async function openJudge(run: string, flags: ModelFlags, player: Learner): Promise<Learner> {
  const judge = await openRewardModel(run, flags);
  const same =
    judge.info.vocabSize === player.info.vocabSize &&
    judge.tokenizer?.vocabSize === player.tokenizer?.vocabSize;
  if (same) return judge;
  await judge.dispose();
  throw new NlacError("ERR_VALUE", `The reward model of ${run} has another vocabulary than the policy.`);
}
