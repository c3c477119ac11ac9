/**
 * Stands in an environment's place where training learns from episodes that were played and recorded elsewhere, by an agent
 * behind `nlac serve` say. It has no tasks, and nothing can be played in it.
 */

import { NlacError } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";

export interface RecordedOptions {
  /** How the actions of the recorded episodes were written. Default "call", as `nlac serve` has them. */
  actionFormat?: "text" | "tool" | "call";
}

/** Throws ERR_CONFIG for options that do not validate. */
export function recorded(options: RecordedOptions = {}): Environment<never> {
  const { actionFormat = "call", ...others } = options;
  if (Object.keys(others).length > 0 || !["text", "tool", "call"].includes(actionFormat))
    throw new NlacError("ERR_CONFIG", 'recorded: the one option is actionFormat, "text", "tool" or "call".');
  const nothing = async (): Promise<never> => {
    throw new NlacError(
      "ERR_ENVIRONMENT",
      "recorded: there is nothing to play. Learn from recorded episodes alone: episodesPerIteration 0.",
    );
  };
  return {
    name: "recorded",
    actionFormat,
    maxTurns: 1,
    tasks: async () => [],
    taskId: () => "",
    start: nothing,
    reset: nothing,
    step: nothing,
    close: async () => {},
  };
}
