/** Parsers for option values, with messages a person can act on. */

import { type Command, InvalidArgumentError } from "commander";

export function wholeNumber(minimum: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (!Number.isSafeInteger(value) || value < minimum) {
      throw new InvalidArgumentError(`It must be a whole number, ${minimum} or more.`);
    }
    return value;
  };
}

export function numberFrom(minimum: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (text.trim() === "" || !Number.isFinite(value) || value < minimum) {
      throw new InvalidArgumentError(`It must be a number, ${minimum} or more.`);
    }
    return value;
  };
}

/** JSON, for environments' options. */
export function jsonObject(text: string): Record<string, unknown> {
  try {
    const value = JSON.parse(text) as unknown;
    if (typeof value === "object" && value !== null && !Array.isArray(value))
      return value as Record<string, unknown>;
  } catch {
    // Reported below, like JSON of the wrong kind.
  }
  throw new InvalidArgumentError("It must be a JSON object, for example '{\"turns\": 10}'.");
}

/** --device, --dtype and --seed, for every command that opens a model. */
export function withModelOptions(command: Command): Command {
  return command
    .option("--device <device>", "cpu, cuda or cuda:N (default: the run's, else cpu)")
    .option("--dtype <dtype>", "bfloat16 or float32 (default: the run's, else bfloat16)", (text) => {
      if (text !== "bfloat16" && text !== "float32")
        throw new InvalidArgumentError("It must be bfloat16 or float32.");
      return text;
    })
    .option("--seed <number>", "seed of every random choice", wholeNumber(0), 0);
}
