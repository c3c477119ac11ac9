/** An optimizer step as the methods take it. */

import { NlacError } from "../errors.ts";
import type { LanguageModel } from "../model.ts";
import { type Schedule, scheduled } from "../run/schedule.ts";

/** What the methods' configurations say of a step; every field is explained there. */
export interface StepConfig {
  learningRate: number;
  schedule: Schedule;
  betas: [number, number];
  weightDecay: number;
  maxGradNorm: number;
  maxSkippedSteps: number;
  /** Names the set of AdamW moments to use, for a method with more than one loss. Default "". */
  state?: string;
}

/**
 * A step on the gradients added up, at the rate of step `number` of `total`.
 *
 * @param counters counts the steps skipped in a row
 * @returns what is logged of it
 * @throws NlacError ERR_NOT_FINITE when too many steps in a row were skipped
 */
export async function scheduledStep(
  model: LanguageModel,
  config: StepConfig,
  { number, total }: { number: number; total: number },
  counters: { skippedInARow: number },
): Promise<Record<"grad_norm" | "skipped" | "learning_rate", number>> {
  const learningRate = config.learningRate * scheduled(config.schedule, number, total);
  const { gradNorm, skipped } = await model.step({
    learningRate,
    betas: config.betas,
    weightDecay: config.weightDecay,
    maxGradNorm: config.maxGradNorm,
    ...(config.state === undefined ? {} : { state: config.state }),
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
