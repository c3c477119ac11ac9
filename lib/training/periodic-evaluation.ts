/**
 * The policy measured while it is trained: every so many iterations the same episodes of held-out tasks are played,
 * with the same random numbers, so that two rows differ by what was learned between them.
 */

import { z } from "zod";
import { derivedSeed, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { taskIndex } from "../playing/collect.ts";
import { evaluate } from "../playing/evaluate.ts";
import { isOver, type TrainingRun } from "../run/training-run.ts";
import { requireTasks } from "./requirements.ts";

export const evaluationConfig = z.strictObject({
  /** Iterations from one measurement to the next: before the first, and always after the last. Default 0: none. */
  every: z.int().min(0).default(0),
  /** Episodes played each time; where there are fewer tasks, tasks are played more than once. Default 32. */
  episodes: z.int().min(1).default(32),
  /** Whose tasks. Default "test". */
  split: z.enum(["train", "test"]).default("test"),
  /** Softmax temperature of the actions; 0 is greedy. Default 0. */
  temperature: z.number().min(0).default(0),
});

/** The parts of a training that a measurement reads; an algorithm hands over its own. */
export interface MeasuredTraining<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  run: TrainingRun;
  state: {
    /** Iterations that are over. */
    iteration: number;
    collected: boolean;
    updates: number;
    environmentSteps: number;
    /** Iterations that were over at the last measurement: a resumed run measures nothing twice. */
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
 * To be called before each iteration and after the last: plays and logs a row `eval/…` when it is time to.
 *
 * @throws NlacError ERR_CONFIG when the split has no tasks, ERR_ABORTED; nothing is logged then
 */
export async function evaluatePeriodically<Task>(training: MeasuredTraining<Task>): Promise<void> {
  const { model, environment, run, state, config } = training;
  const { every, episodes, split, temperature } = config.evaluation;
  const due = every > 0 && (state.iteration % every === 0 || isOver(state, config));
  if (!due || state.evaluated === state.iteration) return;

  const started = performance.now();
  const all = await requireTasks(environment, split);
  // Apart from what training draws, and the same each time.
  const seed = derivedSeed(config.seed, streams.evaluation, 0);
  run.progress.phase("evaluate", episodes);
  const { success, reward, turns } = await evaluate({
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
  await model.dropCaches(); // what is generated next must not depend on whether there was a measurement
  state.evaluated = state.iteration;
  run.progress.show({ [`${split} success`]: success.estimate });
  run.metrics(state.updates, {
    "eval/success": success.estimate,
    "eval/success_low": success.low,
    "eval/success_high": success.high,
    "eval/reward": reward.estimate,
    "eval/turns": turns.estimate,
    "eval/environment_steps": state.environmentSteps,
    "time/evaluate": (performance.now() - started) / 1000,
  });
}
