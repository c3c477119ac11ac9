/** How well a reward model chooses among actions of the policy (the HOPE paper, appendix C.3). */

import { derivedSeed, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import type { LanguageModel, RewardModel } from "../model/language-model.ts";
import { bestOfPlayer } from "../playing/best-of-player.ts";
import { taskIndex } from "../playing/collect.ts";
import { evaluate } from "../playing/evaluate.ts";
import type { TrainingRun } from "../run/training-run.ts";
import type { HopeConfig, HopeState } from "./hope-config.ts";
import { requireTasks } from "./requirements.ts";

export interface RewardEvaluationOptions<Task> {
  model: LanguageModel;
  rewardModel: RewardModel;
  environment: Environment<Task>;
  state: Pick<HopeState, "updates" | "rewardUpdatesDone" | "rewardMeasuredAt" | "rewardBest">;
  config: Pick<HopeConfig, "rewardEvaluation" | "maxActionTokens" | "maxPromptTokens" | "seed">;
  run: Pick<TrainingRun, "signal" | "metrics">;
}

/**
 * Called before each update of the reward model and after the last: measures it if that is due.
 * After the last of `total` updates, the weights that were measured best take the place of the last
 * ones. The reward model's reference holds them.
 *
 * @throws NlacError ERR_ABORTED
 */
export async function chooseReward<Task>(
  options: RewardEvaluationOptions<Task>,
  total: number,
): Promise<void> {
  const { rewardModel, state, config } = options;
  const { every, episodes } = config.rewardEvaluation;
  const done = state.rewardUpdatesDone;
  const due = done === total || (every > 0 && done > 0 && done % every === 0);
  if (episodes === 0 || !due || state.rewardMeasuredAt === done) return;
  const success = await measureReward(options);
  if (every > 0 && success >= (state.rewardBest ?? 0)) {
    await rewardModel.keepReference();
    state.rewardBest = success;
  } else if (every > 0 && done === total) {
    await rewardModel.restoreReference();
  }
  state.rewardMeasuredAt = done;
}

/** Plays the action that the reward model prefers among several. Returns the share of successes. */
async function measureReward<Task>({
  model,
  rewardModel,
  environment,
  state,
  config,
  run,
}: RewardEvaluationOptions<Task>): Promise<number> {
  const { episodes, bestOf, temperature, split } = config.rewardEvaluation;
  const all = await requireTasks(environment, split);
  const seed = derivedSeed(config.seed, streams.evaluation, 1);
  const { success, reward } = await evaluate({
    model: bestOfPlayer(model, rewardModel, bestOf),
    environment,
    tasks: Array.from({ length: episodes }, (_, i) => all[taskIndex(i, all.length, seed)]!),
    ...{ seed, temperature, concurrency: episodes, signal: run.signal },
    maxActionTokens: config.maxActionTokens,
    maxPromptTokens: config.maxPromptTokens,
  });
  await model.dropCaches();
  run.metrics(state.updates, {
    "best_of/success": success.estimate,
    "best_of/success_low": success.low,
    "best_of/success_high": success.high,
    "best_of/reward": reward.estimate,
  });
  return success.estimate;
}
