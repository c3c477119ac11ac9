/** Opens environments for recipes and commands: by name, or from a file. */

import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { didYouMean } from "../base/did-you-mean.ts";
import { NlacError } from "../base/errors.ts";
import { loadModule } from "../base/load-module.ts";
import { overlay } from "../base/overlay.ts";
import { requireDescription } from "../contract/checks.ts";
import type { Environment } from "../contract/environment.ts";
import type { environments } from "./index.ts";

type Makers = typeof environments;

/** Loads one environment: all of them together take a third of a second. */
const loaders: { [Name in keyof Makers]: () => Promise<Makers[Name]> } = {
  twentyQuestions: async () => (await import("./twenty-questions/index.ts")).twentyQuestions,
  math: async () => (await import("./math/index.ts")).math,
  errands: async () => (await import("./errands/index.ts")).errands,
  tauBench: async () => (await import("./tau-bench/index.ts")).tauBench,
  recorded: async () => (await import("./recorded.ts")).recorded,
  guessMyCity: async () => (await import("./guess-my-city/index.ts")).guessMyCity,
  carDealer: async () => (await import("./car-dealer/index.ts")).carDealer,
};

export const environmentNames = Object.keys(loaders);

/**
 * A file of an environment as an absolute path, relative to `directory`; a name is returned as is.
 */
export function environmentPath(name: string, directory = process.cwd()): string {
  return isFile(name) ? resolve(directory, name) : name;
}

/** Whether `openEnvironment` would read `name` as a built-in environment or as a file. */
export function namesEnvironment(name: string): boolean {
  return Object.hasOwn(loaders, name) || isFile(name);
}

function isFile(name: string): boolean {
  return /\.[cm]?[jt]s$/.test(name);
}

/**
 * @param name one of `environmentNames`, or a file that exports an environment or a function from
 *   options to one
 * @param stepTimeout takes the place of the environment's own
 * @throws NlacError ERR_CONFIG for any other name, and for options that the environment rejects
 */
export async function openEnvironment(
  name: string,
  options: Record<string, unknown> = {},
  stepTimeout?: number,
): Promise<Environment> {
  const environment = isFile(name)
    ? await importEnvironment(environmentPath(name), options)
    : await makeEnvironment(name, options);
  return stepTimeout === undefined ? environment : overlay(environment, { stepTimeout });
}

/** Like `openEnvironment`, for built-in environments only. */
export async function makeEnvironment(
  name: string,
  options: Record<string, unknown> = {},
): Promise<Environment> {
  if (!Object.hasOwn(loaders, name)) {
    throw new NlacError(
      "ERR_CONFIG",
      `There is no environment ${JSON.stringify(name)}${didYouMean(name, environmentNames)}; there are ${environmentNames.join(", ")}, or the file of ` +
        "your own, such as ./mine.ts.",
    );
  }
  const make = (await loaders[name as keyof Makers]()) as (options: unknown) => Environment;
  return make(options);
}

async function importEnvironment(path: string, options: Record<string, unknown>): Promise<Environment> {
  if (!existsSync(path)) throw new NlacError("ERR_CONFIG", `There is no file ${path}.`);
  const exported = await loadModule(path);
  let made: unknown = exported;
  if (typeof exported === "function") {
    try {
      made = await exported(options);
    } catch (error) {
      if (error instanceof NlacError) throw error;
      const message = `${path}: the function that makes the environment failed: ${(error as Error).message ?? error}`;
      throw new NlacError("ERR_CONFIG", message, { cause: error });
    }
  }
  if (!isEnvironment(made))
    throw new NlacError(
      "ERR_CONFIG",
      `${path} must export an environment, or a function that returns one: export default defineEnvironment({ … }).`,
    );
  if (typeof exported !== "function" && Object.keys(options).length > 0)
    throw new NlacError(
      "ERR_CONFIG",
      `${path} exports an environment, which takes no options. Export a function of the options instead.`,
    );
  requireDescription(made, path);
  return made;
}

function isEnvironment(value: unknown): value is Environment {
  if (typeof value !== "object" || value === null) return false;
  const parts = value as Record<string, unknown>;
  const functions = ["tasks", "taskId", "start", "close"];
  return typeof parts.name === "string" && functions.every((name) => typeof parts[name] === "function");
}
