/**
 * Fields that the methods' configurations share. A method spreads a shape into its own schema and
 * redefines fields that differ. "Paper" is NLAC's.
 */

import { z } from "zod";
import { evaluationConfig } from "./periodic-evaluation.ts";
import { scheduleConfig } from "./schedule.ts";

const count = z.int().min(1);
const decay = z.number().min(0).lt(1);

export const trainingConfig = z.strictObject({
  /** Rounds of collecting and updating; 0 ends after the warm-up. Default and paper: 30. */
  iterations: z.int().min(0).default(30),
  /**
   * Starts no further iteration after this many environment steps; 0 is no limit. Default 0. Paper:
   * not given.
   */
  environmentSteps: z.int().min(0).default(0),
  /** When the policy is evaluated on held-out tasks. Default never. */
  evaluation: evaluationConfig.prefault({}),
  /** Seed of every random choice. Default 0. */
  seed: z.int().min(0).default(0),
});

/** AdamW's fields, without the learning rate. */
export const adamWConfig = z.strictObject({
  /** How the learning rate changes over the run. Default constant. Paper: not given. */
  schedule: scheduleConfig.prefault({}),
  /**
   * AdamW's decay rates of the first and second moments. Default [0.9, 0.999]. Paper: not given.
   */
  betas: z.tuple([decay, decay]).default([0.9, 0.999]),
  /**
   * Decoupled weight decay of AdamW, for parameters of two or more dimensions: norms and biases do
   * not decay, except biases of gpt-oss's experts, which are stored as a matrix. Default 0. Paper:
   * not given.
   */
  weightDecay: z.number().min(0).default(0),
  /**
   * Global gradient norm to which larger gradients are scaled down; 0 is off. Default 1. Paper: not
   * given.
   */
  maxGradNorm: z.number().min(0).default(1),
  /**
   * The run fails after this many consecutive steps were skipped for a non-finite loss or gradient.
   * Default 10.
   */
  maxSkippedSteps: count.default(10),
});

/** For methods whose critic is a head on the policy's network. */
export const criticConfig = z.strictObject({
  /**
   * Whether the critic's loss also trains the layers below its head, which the policy uses too. If
   * not, it cannot change the policy, but sees only what the policy's layers show. Default true.
   * The methods' papers have a separate network, or leave it open.
   */
  sharedCritic: z.boolean().default(true),
});

export const optimizerConfig = z.strictObject({
  /** Peak learning rate. Default and paper: 5e-6. */
  learningRate: z.number().min(0).default(5e-6),
  ...adamWConfig.shape,
});
