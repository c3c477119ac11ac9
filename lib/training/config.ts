/**
 * Fields that the methods' configurations share. A method spreads a shape into its own schema and gives a field again
 * where it differs. "Paper" is NLAC's.
 */

import { z } from "zod";
import { evaluationConfig } from "./periodic-evaluation.ts";
import { scheduleConfig } from "./schedule.ts";

const count = z.int().min(1);
const decay = z.number().min(0).lt(1);

export const trainingConfig = z.strictObject({
  /** Rounds of collecting and updating; 0 ends after the warm-up. Paper: 30. */
  iterations: z.int().min(0).default(30),
  /** Environment steps after which no further round begins; 0 is no bound. Paper: not given. */
  environmentSteps: z.int().min(0).default(0),
  /** When the policy is measured on held-out tasks. Default never. */
  evaluation: evaluationConfig.prefault({}),
  /** Seed of every random choice. */
  seed: z.int().min(0).default(0),
});

/** Of an optimizer step, but for its learning rate. */
export const adamWConfig = z.strictObject({
  /** How the learning rate changes over the steps of the run. Paper: not given; default constant. */
  schedule: scheduleConfig.prefault({}),
  /** How AdamW's moments decay. Paper: not given. */
  betas: z.tuple([decay, decay]).default([0.9, 0.999]),
  /** Decoupled weight decay of AdamW. Paper: not given. */
  weightDecay: z.number().min(0).default(0),
  /** Global gradient norm above which a step is scaled down; 0 is off. Paper: not given. */
  maxGradNorm: z.number().min(0).default(1),
  /** Steps in a row that may be skipped for a loss or gradient that is not finite before the run stops. */
  maxSkippedSteps: count.default(10),
});

export const optimizerConfig = z.strictObject({
  /** Learning rate at its peak. Paper: 5e-6. */
  learningRate: z.number().min(0).default(5e-6),
  ...adamWConfig.shape,
});
