/**
 * A placeholder environment for training on episodes that were recorded elsewhere, for example by
 * an agent behind `nlac serve`. It has no tasks and cannot be played.
 */

import { NlacError } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";

export interface RecordedOptions {
  /** Action format of the recorded episodes. Default "call", as recorded by `nlac serve`. */
  actionFormat?: "text" | "tool" | "call";
}

/** Throws ERR_CONFIG for invalid options. */
export function recorded(options: RecordedOptions = {}): Environment<never> {
  const { actionFormat = "call", ...others } = options;
  if (Object.keys(others).length > 0 || !["text", "tool", "call"].includes(actionFormat))
    throw new NlacError("ERR_CONFIG", 'recorded: the only option is actionFormat: "text", "tool" or "call".');
  const nothing = async (): Promise<never> => {
    throw new NlacError(
      "ERR_ENVIRONMENT",
      "recorded: this environment cannot be played. Train on recorded episodes only, with episodesPerIteration 0.",
    );
  };
  return {
    name: "recorded",
    actionFormat,
    maxTurns: 1,
    tasks: async () => [],
    taskId: () => "",
    start: nothing,
    close: async () => {},
  };
}
