/** An optimizer step as the methods take it. */

import type { z } from "zod";
import { NlacError } from "../base/errors.ts";
import type { LanguageModel, StepOptions } from "../model/language-model.ts";
import { type Counters, type Length, shareOver } from "../run/training-run.ts";
import type { optimizerConfig } from "./config.ts";
import { scheduled } from "./schedule.ts";

/** Where a step stands in its training. */
export interface StepPlace {
  /** Number of the step, from 0. */
  step: number;
  /** How much of the training is over, 0 to 1. */
  over: number;
}

/** @param updates of an iteration */
export function stepPlace(counters: Counters, length: Length, updates: number): StepPlace {
  const { iteration, updatesDone } = counters;
  return {
    step: iteration * updates + updatesDone,
    over: shareOver(counters, length, updatesDone / updates),
  };
}

/**
 * A step on the gradients added up, at the learning rate of its place.
 *
 * @param counters counts the steps skipped in a row
 * @param options which moments are used, and whether θ̄ follows
 * @returns what is logged of it
 * @throws NlacError ERR_NOT_FINITE when too many steps in a row were skipped
 */
export async function scheduledStep(
  model: Pick<LanguageModel, "step">,
  optimizer: z.infer<typeof optimizerConfig>,
  place: StepPlace,
  counters: Pick<Counters, "skippedInARow">,
  options: Pick<StepOptions, "moments" | "targetRate"> = {},
): Promise<Record<"grad_norm" | "skipped" | "learning_rate", number>> {
  const { betas, weightDecay, maxGradNorm } = optimizer;
  const learningRate = optimizer.learningRate * scheduled(optimizer.schedule, place.step, place.over);
  const { gradNorm, skipped } = await model.step({
    ...{ learningRate, betas, weightDecay, maxGradNorm },
    ...options,
  });
  counters.skippedInARow = skipped ? counters.skippedInARow + 1 : 0;
  if (counters.skippedInARow >= optimizer.maxSkippedSteps) {
    throw new NlacError(
      "ERR_NOT_FINITE",
      `${counters.skippedInARow} steps in a row had a loss or gradient that was not finite; the last checkpoint is intact.`,
    );
  }
  return { grad_norm: gradNorm, skipped: skipped ? 1 : 0, learning_rate: learningRate };
}
