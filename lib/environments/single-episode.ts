/**
 * Shared by the environments: `reset`, `step` and `close` for one episode at a time, based on
 * `start`, and errors for an unknown split and for a step after the end.
 */

import { NlacError } from "../base/errors.ts";
import type { Environment, Episode, ResetOptions } from "../contract/environment.ts";

export function singleEpisode<Task>(
  name: string,
  start: (task: Task, options: ResetOptions) => Promise<Episode>,
): Pick<Environment<Task>, "reset" | "step" | "close"> {
  let current: Episode | undefined;
  const close = async (): Promise<void> => {
    const last = current;
    current = undefined;
    await last?.close();
  };
  return {
    async reset(task, options) {
      await close();
      current = await start(task, options);
      return current.observation;
    },
    async step(action) {
      if (current === undefined) throw new NlacError("ERR_ENVIRONMENT", `${name}: call reset before step.`);
      return current.step(action);
    },
    close,
  };
}

/** Throws ERR_VALUE for an unknown split. */
export function checkSplit(name: string, split: unknown): asserts split is "train" | "test" {
  if (split === "train" || split === "test") return;
  throw new NlacError("ERR_VALUE", `${name}: split must be "train" or "test", not ${JSON.stringify(split)}.`);
}

/** The error of a step after the end. */
export function episodeOver(name: string): NlacError {
  return new NlacError("ERR_ENVIRONMENT", `${name}: the episode is over; start a new one.`);
}
