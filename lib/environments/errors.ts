/** Errors that the environments share: an unknown split, and a step after the end. */

import { NlacError } from "../base/errors.ts";

/** Throws ERR_VALUE for an unknown split. */
export function checkSplit(name: string, split: unknown): asserts split is "train" | "test" {
  if (split === "train" || split === "test") return;
  throw new NlacError("ERR_VALUE", `${name}: split must be "train" or "test", not ${JSON.stringify(split)}.`);
}

/** The error of a step after the end. */
export function episodeOver(name: string): NlacError {
  return new NlacError("ERR_ENVIRONMENT", `${name}: the episode is over; start a new one.`);
}
