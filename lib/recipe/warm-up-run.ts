/** The warm-up of a run. It is saved as training is: a stop loses nothing. */

import { isAborted } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";
import type { LanguageModel } from "../model/language-model.ts";
import type { WholeCheckpoint } from "../run/checkpoints.ts";
import type { TrainingRun } from "../run/training-run.ts";
import { warmUp } from "../training/warmup.ts";
import type { Recipe } from "./recipe.ts";

/** What is warmed up. */
export interface WarmUpRunOptions {
  recipe: Recipe;
  model: LanguageModel;
  /** Warmed up after the policy, on the same examples. */
  rewardModel?: LanguageModel | undefined;
  environment: Environment;
  run: TrainingRun;
  /** The checkpoint that the run continues from. */
  from?: WholeCheckpoint | undefined;
}

/**
 * The rest of the recipe's warm-up, if there is any. Saves a checkpoint when the run's interval has
 * passed and when its signal fires.
 *
 * @returns false if it was stopped
 * @throws NlacError as `warmUp`
 */
export async function warmUpRun(options: WarmUpRunOptions): Promise<boolean> {
  const { recipe, model, rewardModel, environment, run, from } = options;
  const { steps } = recipe.warmup;
  let done = from ? (from.saved.warmup ?? Number.POSITIVE_INFINITY) : 0;
  const models = rewardModel ? [model, rewardModel] : [model];
  const save = (force: boolean) =>
    run.checkpoint({ state: {}, warmup: done, model, ...(rewardModel && { rewardModel }) }, force);
  for (const [i, learning] of models.entries()) {
    if (done >= (i + 1) * steps) continue;
    run.progress.phase("warm-up", steps);
    const stepsDone = done - i * steps;
    if (stepsDone > 0) run.progress.advance(stepsDone);
    try {
      await warmUp({
        ...{ model: learning, environment, config: recipe.warmup, seed: recipe.config.seed },
        ...{ signal: run.signal, stepsDone },
        onStep: async (step, nll, tokens) => {
          done = i * steps + step;
          run.progress.show({ NLL: nll });
          run.progress.advance(step, tokens);
          if (step < steps) await save(false);
        },
      });
    } catch (error) {
      if (!isAborted(error) || !run.signal.aborted) throw error;
      await save(true);
      return false;
    }
    run.progress.hide?.("NLL");
  }
  return true;
}
