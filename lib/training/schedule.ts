/** Learning rate schedules: a linear warm-up, then constant or decaying to a floor. */

import { z } from "zod";

const shapes = z.enum(["constant", "linear", "cosine"]);

export const scheduleConfig = z.strictObject({
  /**
   * Shape of the schedule over the run: constant, or linear or cosine decay. Default constant,
   * unless the method says otherwise.
   */
  shape: shapes.default("constant"),
  /** First steps, over which the rate also rises linearly. Default 0. */
  warmupSteps: z.int().min(0).default(0),
  /** Share of the peak rate at the end of a linear or cosine decay, 0 to 1. Default 0. */
  floor: z.number().min(0).max(1).default(0),
});

export type Schedule = z.infer<typeof scheduleConfig>;

/** A schedule whose default shape is `shape`, also if other fields are given. */
export function scheduleConfigOf(shape: Schedule["shape"]) {
  return scheduleConfig.extend({ shape: shapes.default(shape) }).prefault({});
}

/**
 * Share of the peak rate for a step.
 *
 * @param step number of the step, from 0; step 0 gets 1 / warmupSteps, so that it has an effect
 * @param over share of the training that is over, 0 to 1
 */
export function scheduled({ shape, warmupSteps, floor }: Schedule, step: number, over: number): number {
  const risen = Math.min(1, (step + 1) / Math.max(1, warmupSteps));
  if (shape === "constant") return risen;
  const left = shape === "linear" ? 1 - over : (1 + Math.cos(Math.PI * over)) / 2;
  return risen * (floor + (1 - floor) * left);
}
