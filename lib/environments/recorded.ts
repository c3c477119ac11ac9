/**
 * A placeholder environment for training on episodes that were recorded elsewhere, for example by
 * an agent behind `nlac serve`. It has no tasks and cannot be played.
 */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { checkConfig, inOption } from "../base/validation.ts";
import type { Environment } from "../contract/environment.ts";

export interface RecordedOptions {
  /** Action format of the recorded episodes. Default "call", as recorded by `nlac serve`. */
  actionFormat?: "text" | "tool" | "call";
}

const recordedOptions = z.strictObject({ actionFormat: z.enum(["text", "tool", "call"]).default("call") });

/** Throws ERR_CONFIG for invalid options. */
export function recorded(options: RecordedOptions = {}): Environment<never> {
  const { actionFormat } = inOption("recorded", () => checkConfig(recordedOptions, options));
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
