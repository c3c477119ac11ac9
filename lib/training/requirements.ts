/**
 * Checks that an environment offers what a training needs. The checks run before a model is loaded
 * and warmed up, and again when a method starts.
 */

import type { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { checkConfig, checkKeys, isObject, shown } from "../base/validation.ts";
import { tasksOf } from "../contract/checks.ts";
import { type Environment, isSingleStep } from "../contract/environment.ts";

const optionNames = ["model", "environment", "config"];

/**
 * The configuration in a method's options, with all defaults. Throws ERR_CONFIG that names every bad
 * field of it, an option that does not exist, or a missing model or environment.
 */
export function configOf<Schema extends z.ZodType>(
  schema: Schema,
  options: { model: unknown; environment: unknown; config?: unknown },
  more: readonly string[] = ["run"],
): z.output<Schema> {
  checkKeys(options, "options", [...optionNames, ...more], "ERR_CONFIG");
  for (const name of ["model", "environment"] as const)
    if (!isObject(options[name]))
      throw new NlacError("ERR_CONFIG", `options.${name} must be an object; it is ${shown(options[name])}.`);
  return checkConfig(schema, options.config);
}

/** The tasks of a split. Throws ERR_CONFIG if there are none, ERR_ENVIRONMENT. */
export async function requireTasks<Task>(
  environment: Pick<Environment<Task>, "name" | "tasks">,
  split: "train" | "test",
): Promise<Task[]> {
  const tasks = await tasksOf(environment, split);
  if (tasks.length > 0) return tasks;
  const name = environment.name;
  throw new NlacError(
    "ERR_CONFIG",
    name === "recorded"
      ? 'The environment "recorded" has no tasks. To train on recorded episodes, set config.recorded and ' +
          "config.episodesPerIteration=0; to train on the episodes of clients, use nlac serve --train."
      : `${name} has no tasks to ${split} on. Its tasks("${split}") is empty.`,
  );
}

/** @throws NlacError ERR_CONFIG if actions are to be constrained and their format cannot be */
export function requireForm(
  { name, actionFormat }: Pick<Environment, "name" | "actionFormat">,
  { constrainActions }: { constrainActions: boolean },
): void {
  if (!constrainActions || actionFormat === "tool") return;
  throw new NlacError(
    "ERR_CONFIG",
    `constrainActions: only the action format "tool" can be constrained; ${name} has the format "${actionFormat}".`,
  );
}

/** @throws NlacError ERR_CONFIG for several futures of an action that has none */
export function requireFuture(
  environment: Pick<Environment, "name" | "actionFormat" | "singleStep">,
  { futures }: { futures: number },
): void {
  if (futures === 1 || !isSingleStep(environment)) return;
  throw new NlacError(
    "ERR_CONFIG",
    `futures: nothing follows an action of ${environment.name}, whose tasks have a single step. Set futures to 1.`,
  );
}

/**
 * @throws NlacError ERR_CONFIG if the environment has no scripted episodes, which warm-up and
 *   rehearsal need
 */
export function requireDemonstrations<Task>({
  name,
  demonstrate,
}: Pick<Environment<Task>, "name" | "demonstrate">): void {
  if (demonstrate !== undefined) return;
  throw new NlacError(
    "ERR_CONFIG",
    `${name} has no scripted episodes to learn from, which warm-up, rehearsal and demonstrations need. Add ` +
      '"demonstrate" to the environment, or leave out warmup, config.rehearsal and config.demonstrationsPerTask.',
  );
}

/**
 * @throws NlacError ERR_CONFIG if the environment does not say which action would have been right
 */
export function requireHindsight({ name, hindsight }: Pick<Environment, "name" | "hindsight">): void {
  if (hindsight !== undefined) return;
  throw new NlacError(
    "ERR_CONFIG",
    `${name} does not say which action would have been right in hindsight: it has no "hindsight".`,
  );
}
