/** An optimizer step as the methods take it. */

import { NlacError } from "../base/errors.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { type Counters, type Length, shareOver } from "../run/training-run.ts";
import { type Schedule, scheduled } from "./schedule.ts";

/** What the methods' configurations say of a step; every field is explained there. */
export interface StepConfig extends Length {
  learningRate: number;
  schedule: Schedule;
  betas: [number, number];
  weightDecay: number;
  maxGradNorm: number;
  maxSkippedSteps: number;
  /** Names the set of AdamW moments to use, for a method with more than one loss. Default "". */
  moments?: string;
  /** τ at which θ̄ follows the step, for a method with a θ̄ that does. Default: it stays. */
  targetRate?: number | undefined;
}

/**
 * A step on the gradients added up, at the rate of its place in the training.
 *
 * @param counters say which step it is, and count the steps skipped in a row
 * @param updates of an iteration
 * @returns what is logged of it
 * @throws NlacError ERR_NOT_FINITE when too many steps in a row were skipped
 */
export async function scheduledStep(
  model: LanguageModel,
  config: StepConfig,
  counters: Counters,
  updates: number,
): Promise<Record<"grad_norm" | "skipped" | "learning_rate", number>> {
  const { iteration, updatesDone } = counters;
  const rate = scheduled(
    config.schedule,
    iteration * updates + updatesDone,
    shareOver(counters, config, updatesDone / updates),
  );
  const learningRate = config.learningRate * rate;
  const { gradNorm, skipped } = await model.step({
    learningRate,
    betas: config.betas,
    weightDecay: config.weightDecay,
    maxGradNorm: config.maxGradNorm,
    targetRate: config.targetRate,
    ...(config.moments === undefined ? {} : { moments: config.moments }),
  });
  counters.skippedInARow = skipped ? counters.skippedInARow + 1 : 0;
  if (counters.skippedInARow >= config.maxSkippedSteps) {
    throw new NlacError(
      "ERR_NOT_FINITE",
      `${counters.skippedInARow} steps in a row had a loss or gradient that was not finite; the last checkpoint is intact.`,
    );
  }
  return { grad_norm: gradNorm, skipped: skipped ? 1 : 0, learning_rate: learningRate };
}
