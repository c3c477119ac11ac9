/**
 * How good a reward model is: on actions that it was not trained on, and by how well it chooses
 * among actions of the policy (the HOPE paper, appendix C.3).
 */

import { getOrAdd } from "../base/get-or-add.ts";
import { derivedSeed, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { rewardRounding } from "../episodes/trajectory.ts";
import type { LanguageModel, RewardModel } from "../model/language-model.ts";
import { bestOfPlayer } from "../playing/best-of-player.ts";
import { taskIndex } from "../playing/collect.ts";
import { evaluate } from "../playing/evaluate.ts";
import type { TrainingRun } from "../run/training-run.ts";
import { areaUnderCurve, brier } from "../statistics/forecasts.ts";
import { mean } from "../statistics/mean.ts";
import type { HopeConfig, HopeState } from "./hope-config.ts";
import { inGroups } from "./losses.ts";
import { requireTasks } from "./requirements.ts";
import { keyOf } from "./returns.ts";
import type { LabelledAction } from "./reward-data.ts";

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
  } else if (every > 0 && done === total && state.rewardBest !== undefined) {
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

/**
 * Compares the reward model with labels that it was not trained on. Labels from 0.5 on are high.
 * @returns metrics; NaN where there was nothing to measure
 */
export async function heldOutMetrics(
  rewardModel: Pick<RewardModel, "rewards">,
  actions: readonly LabelledAction[],
): Promise<Record<string, number>> {
  const texts = actions.map(({ state, action }) => ({ prompt: state.prompt(), response: action }));
  const { signal } = new AbortController(); // never stops
  const scores = await inGroups(texts, signal, async (group) => [...(await rewardModel.rewards(group))]);
  const judged = actions.map(({ state, label }, i) => ({
    ...{ state: keyOf(state.tokens), label, score: scores[i]!, isHigh: label >= 0.5 },
  }));
  const scoresOf = (high: boolean) =>
    judged.filter(({ isHigh }) => isHigh === high).map(({ score }) => score);
  const byState = new Map<string, typeof judged>();
  for (const one of judged) getOrAdd(byState, one.state, () => []).push(one);
  const ranked = [...byState.values()].flatMap((group) =>
    group.flatMap((a) =>
      group
        .filter((b) => a.label > b.label + rewardRounding)
        .map((b) => (a.score > b.score ? 1 : a.score === b.score ? 0.5 : 0)),
    ),
  );
  return {
    "held_out/brier": brier(judged.map(({ score, label }) => ({ forecast: score, ended: label }))),
    "held_out/accuracy": mean(judged.map(({ score, isHigh }) => Number(score >= 0.5 === isHigh))),
    "held_out/auc": areaUnderCurve(scoresOf(true), scoresOf(false)),
    "held_out/pairs": ranked.length,
    "held_out/pair_accuracy": mean(ranked),
  };
}
