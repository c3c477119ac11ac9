/** How a learning rate changes over a training: it rises over the first steps, then stays or falls to a floor. */

import { z } from "zod";

export const scheduleConfig = z.strictObject({
  /** After the warm-up: the same to the end, a straight line down, or half a cosine down. Default constant. */
  shape: z.enum(["constant", "linear", "cosine"]).default("constant"),
  /** First steps, over which the rate rises in a straight line. Default 0. */
  warmupSteps: z.int().min(0).default(0),
  /** Share of the rate that is left at the end of a line or a cosine, 0 to 1. Default 0. */
  floor: z.number().min(0).max(1).default(0),
});

export type Schedule = z.infer<typeof scheduleConfig>;

/**
 * Share of the peak rate at which a step is taken.
 *
 * @param step number of the step, from 0; the first is taken at 1 / warmupSteps, so that none is lost
 * @param total steps of the training; those beyond it are taken at the floor
 */
export function scheduled({ shape, warmupSteps, floor }: Schedule, step: number, total: number): number {
  if (step < warmupSteps) return (step + 1) / warmupSteps;
  if (shape === "constant") return 1;
  const gone = Math.min(1, (step - warmupSteps) / Math.max(1, total - warmupSteps));
  const left = shape === "linear" ? 1 - gone : (1 + Math.cos(Math.PI * gone)) / 2;
  return floor + (1 - floor) * left;
}
