/** Options that several commands have, and parsers for option values. */

import { type Command, InvalidArgumentError } from "commander";
import { dtypeOptions } from "../base/dtype.ts";
import { isObject } from "../base/validation.ts";

export function wholeNumber(minimum: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (text.trim() === "" || !Number.isSafeInteger(value) || value < minimum) {
      throw new InvalidArgumentError(`It must be a whole number, ${minimum} or more.`);
    }
    return value;
  };
}

/** Reads the port that a server listens on. */
export function portNumber(text: string): number {
  const value = Number(text);
  if (text.trim() !== "" && Number.isInteger(value) && value >= 0 && value <= 65_535) return value;
  throw new InvalidArgumentError("It must be a whole number from 0 to 65535.");
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

/** Reads a number above 0. */
export function numberAboveZero(text: string): number {
  const value = Number(text);
  if (Number.isFinite(value) && value > 0) return value;
  throw new InvalidArgumentError("It must be a number above 0.");
}

/** Collects the values of a repeatable option. */
export function collect(value: string, earlier: string[]): string[] {
  return [...earlier, value];
}

/** Collects origins, such as https://chat.example, in the form of the header Origin; "*": all origins. */
export function collectOrigins(text: string, earlier: string[]): string[] {
  if (text === "*" || text === "null") return [...earlier, text]; // "null" is that of a file
  if (!/^[a-z][\w+.-]*:\/\/[^/?#\s]+\/?$/i.test(text) || !URL.canParse(text))
    throw new InvalidArgumentError("It must be an origin, for example https://chat.example, or * for all.");
  const { origin } = new URL(text);
  return [...earlier, origin === "null" ? text.replace(/\/$/, "") : origin]; // that of an extension
}

/** Accepts exactly one of `choices`. */
export function oneOf<T extends string>(...choices: readonly T[]): (text: string) => T {
  return (text) => {
    const choice = choices.find((name) => name === text);
    if (choice === undefined) throw new InvalidArgumentError(`It must be ${choices.join(" or ")}.`);
    return choice;
  };
}

/** Parses a JSON object, such as an environment's options. */
export function jsonObject(text: string): Record<string, unknown> {
  try {
    const value = JSON.parse(text) as unknown;
    if (isObject(value)) return value;
  } catch {
    // Reported below, like JSON of the wrong kind.
  }
  throw new InvalidArgumentError("It must be a JSON object, for example '{\"turns\": 10}'.");
}

/** Whether an option is on the command line, not only its default. */
export function isGiven(command: Command, option: string): boolean {
  return command.getOptionValueSource(option) === "cli";
}

/** An option as it is typed: maxIdleHours → --max-idle-hours. */
export function asFlag(option: string): string {
  return `--${option.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/** --device and --dtype, for commands that open a model. */
export function withModelOptions(command: Command): Command {
  return command
    .option("--device <device>", "cpu, cuda or cuda:N (default: the run's, else cpu)")
    .option(
      "--dtype <dtype>",
      "bfloat16, float32, or auto: the faster of the two on the device (default: the run's, else auto)",
      oneOf(...dtypeOptions),
    );
}

/** Also --int8-generation and --seed, for commands whose model generates. */
export function withGenerationOptions(command: Command): Command {
  return withModelOptions(command)
    .option("--int8-generation", "on a CPU, generate with int8 weights: faster for one or a few sequences")
    .option("--seed <number>", "seed of every random choice", wholeNumber(0), 0);
}
