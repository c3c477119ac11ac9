/**
 * Evaluates the policy during training: at intervals it plays the same episodes of held-out tasks
 * with the same seeds, so that two rows differ only by what was learned in between.
 */

import { z } from "zod";
import { derivedSeed, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { isFaulty } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { taskIndex } from "../playing/collect.ts";
import { evaluate } from "../playing/evaluate.ts";
import { endless, isOver, type TrainingRun } from "../run/training-run.ts";
import { noteFaults } from "./note-faults.ts";
import { requireTasks } from "./requirements.ts";

export const evaluationConfig = z.strictObject({
  /**
   * Iterations between evaluations, beginning before the first; the final policy is always
   * evaluated. Default 0: none.
   */
  every: z.int().min(0).default(0),
  /** Episodes per evaluation; with fewer tasks than that, tasks repeat. Default 32. */
  episodes: z.int().min(1).default(32),
  /** Split the tasks are taken from. Default "test". */
  split: z.enum(["train", "test"]).default("test"),
  /** Softmax temperature of the actions; 0 is greedy. Default 0. */
  temperature: z.number().min(0).default(0),
});

/** The parts of a training that an evaluation reads; the algorithm passes its own. */
export interface MeasuredTraining<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  run: TrainingRun;
  state: {
    /** Number of finished iterations. */
    iteration: number;
    collected: boolean;
    updates: number;
    environmentSteps: number;
    /** Value of `iteration` at the last evaluation, so that a resumed run repeats none. */
    evaluated?: number;
  };
  config: {
    iterations: number;
    environmentSteps: number;
    evaluation: z.infer<typeof evaluationConfig>;
    maxActionTokens: number;
    maxPromptTokens: number;
    constrainActions: boolean;
    seed: number;
  };
}

/**
 * Shows the iteration that begins. The total is unknown if environment steps limit the training, or
 * nothing does.
 */
function showIteration<Task>({ run, state, config }: MeasuredTraining<Task>): void {
  const isCounted = config.environmentSteps === 0 && config.iterations !== endless;
  const total = isCounted ? config.iterations : undefined;
  run.progress.iteration?.(Math.min(state.iteration + 1, config.iterations), total);
}

/**
 * Called before each iteration and after the last: if one is due, plays, records the episodes and
 * logs a row `eval/…`.
 *
 * @returns the share of successes, 0 to 1; undefined if no evaluation was due
 * @throws NlacError ERR_CONFIG if the split has no tasks, ERR_ABORTED; nothing is logged then
 */
export async function evaluatePeriodically<Task>(
  training: MeasuredTraining<Task>,
): Promise<number | undefined> {
  const { model, environment, run, state, config } = training;
  showIteration(training);
  const { every, episodes, split, temperature } = config.evaluation;
  const due = every > 0 && (state.iteration % every === 0 || isOver(state, config));
  if (!due || state.evaluated === state.iteration) return undefined;

  const started = performance.now();
  const all = await requireTasks(environment, split);
  // Independent of training's seeds, and the same each time.
  const seed = derivedSeed(config.seed, streams.evaluation, 0);
  run.progress.phase("evaluate", episodes);
  const { success, reward, turns, trajectories } = await evaluate({
    model,
    environment,
    tasks: Array.from({ length: episodes }, (_, i) => all[taskIndex(i, all.length, seed)]!),
    seed,
    concurrency: episodes,
    maxActionTokens: config.maxActionTokens,
    maxPromptTokens: config.maxPromptTokens,
    temperature,
    constrainActions: config.constrainActions,
    signal: run.signal,
    onProgress: (finished) => run.progress.advance(finished),
  });
  await model.dropCaches(); // without this, later generations would depend on whether there was an evaluation
  noteFaults(run.progress, trajectories, "evaluate");
  run.evaluation(trajectories, state.updates, split);
  state.evaluated = state.iteration;
  run.progress.show({ [`${split} success`]: success.estimate });
  run.metrics(state.updates, {
    "eval/success": success.estimate,
    "eval/success_low": success.low,
    "eval/success_high": success.high,
    "eval/reward": reward.estimate,
    "eval/turns": turns.estimate,
    "eval/faults": trajectories.filter(isFaulty).length,
    "eval/environment_steps": state.environmentSteps,
    "time/evaluate": (performance.now() - started) / 1000,
  });
  return success.estimate;
}
