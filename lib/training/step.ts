/** The optimizer step shared by the methods. */

import type { z } from "zod";
import { NlacError } from "../base/errors.ts";
import type { LanguageModel, PolicyGradientModel, StepOptions } from "../model/language-model.ts";
import { type Counters, type Length, shareOver } from "../run/training-run.ts";
import type { optimizerConfig } from "./config.ts";
import { scheduled } from "./schedule.ts";

/** Position of a step within its training. */
export interface StepPlace {
  /** Number of the step, from 0. */
  step: number;
  /** Share of the training that is over, 0 to 1. */
  over: number;
}

/** @param updates per iteration */
export function stepPlace(counters: Counters, length: Length, updates: number): StepPlace {
  const { iteration, updatesDone } = counters;
  return {
    step: iteration * updates + updatesDone,
    over: shareOver(counters, length, updatesDone / updates),
  };
}

/**
 * Takes a step on the accumulated gradients, at the learning rate of its place.
 *
 * @param counters counts consecutive skipped steps
 * @param options which moments to use, and whether to move θ̄
 * @returns metrics to log
 * @throws NlacError ERR_NOT_FINITE if too many consecutive steps were skipped
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
      `${counters.skippedInARow} consecutive steps had a loss or gradient that was not finite. The last checkpoint is intact.`,
    );
  }
  return { grad_norm: gradNorm, skipped: skipped ? 1 : 0, learning_rate: learningRate };
}

/** Starts training again from the reference, with new moments. */
export async function startAgain(
  model: Pick<PolicyGradientModel, "restoreReference" | "discardMoments">,
): Promise<void> {
  await model.restoreReference();
  await model.discardMoments("");
}
