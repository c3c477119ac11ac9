/** How a learning rate changes over a training: it rises over the first steps, and stays or falls to a floor. */

import { z } from "zod";

export const scheduleConfig = z.strictObject({
  /** From beginning to end: the same, a straight line down, or half a cosine down. Default constant. */
  shape: z.enum(["constant", "linear", "cosine"]).default("constant"),
  /** First steps, over which the rate rises in a straight line besides. Default 0. */
  warmupSteps: z.int().min(0).default(0),
  /** Share of the rate that is left at the end of a line or a cosine, 0 to 1. Default 0. */
  floor: z.number().min(0).max(1).default(0),
});

export type Schedule = z.infer<typeof scheduleConfig>;

/**
 * Share of the peak rate at which a step is taken.
 *
 * @param step number of the step, from 0; the first is taken at 1 / warmupSteps, so that none is lost
 * @param over how much of the training is over, 0 to 1
 */
export function scheduled({ shape, warmupSteps, floor }: Schedule, step: number, over: number): number {
  const risen = Math.min(1, (step + 1) / Math.max(1, warmupSteps));
  if (shape === "constant") return risen;
  const left = shape === "linear" ? 1 - over : (1 + Math.cos(Math.PI * over)) / 2;
  return risen * (floor + (1 - floor) * left);
}
