/** Checks of what an environment says of itself and of its tasks, and of its errors: it may be user code. */

import { messageOf, NlacError } from "../base/errors.ts";
import { shown } from "../base/validation.ts";
import type { Action, Environment, Episode, StartOptions, StepResult } from "./environment.ts";
import { withTimeout } from "./timeout.ts";

const formats = ["text", "tool", "call", "solution"] satisfies Environment["actionFormat"][];

type Description = Pick<
  Environment,
  "name" | "actionFormat" | "maxTurns" | "singleStep" | "rewardRange" | "stepTimeout" | "idle"
>;

/** What is wrong with an environment's fixed properties, one line each. */
export function descriptionProblems(environment: Description): string[] {
  const { name, maxTurns, actionFormat, singleStep, rewardRange = [0, 1], stepTimeout, idle } = environment;
  const problems: string[] = [];
  if (typeof name !== "string") problems.push(`name must be a string; it is ${shown(name)}`);
  else if (name === "") problems.push("name is empty");
  if (!Number.isInteger(maxTurns) || maxTurns < 1)
    problems.push(`maxTurns must be an integer of at least 1; it is ${shown(maxTurns)}`);
  if (!formats.includes(actionFormat))
    problems.push(`actionFormat must be one of ${formats.join(", ")}; it is ${shown(actionFormat)}`);
  if (actionFormat === "solution" && maxTurns !== 1)
    problems.push("a solution environment must have a single turn");
  if (singleStep === true && maxTurns !== 1)
    problems.push("a single-step environment must have a single turn");
  const [low, high] = rewardRange;
  if (!(Number.isFinite(low) && Number.isFinite(high) && low < high))
    problems.push(`rewardRange is [${low}, ${high}]`);
  if (stepTimeout !== undefined && !(stepTimeout > 0))
    problems.push(`stepTimeout must be a positive number, in milliseconds; it is ${shown(stepTimeout)}`);
  if (idle !== undefined && typeof idle?.text !== "string")
    problems.push('idle must be an action, such as { text: "wait" }, or a call made by callAction');
  return problems;
}

/** Throws ERR_CONFIG that names the first problem of the description. */
export function requireDescription(environment: Description, where: string): void {
  const [problem] = descriptionProblems(environment);
  if (problem !== undefined) throw new NlacError("ERR_CONFIG", `${where}: ${problem}.`);
}

/** The tasks of a split. Throws ERR_ENVIRONMENT if `tasks` fails or returns no list. */
export async function tasksOf<Task>(
  environment: Pick<Environment<Task>, "name" | "tasks">,
  split: "train" | "test",
): Promise<Task[]> {
  const { name } = environment;
  const tasks = await inEnvironment(`${name}: the ${split} tasks cannot be listed`, () =>
    environment.tasks(split),
  );
  if (Array.isArray(tasks)) return tasks;
  throw new NlacError(
    "ERR_ENVIRONMENT",
    `${name}: the ${split} tasks must be a list of tasks; they are ${shown(tasks)}.`,
  );
}

/** Starts an episode. Throws ERR_ENVIRONMENT if the environment fails. */
export function startEpisode<Task>(
  environment: Pick<Environment<Task>, "name" | "start">,
  task: Task,
  options: StartOptions,
): Promise<Episode> {
  return inEnvironment(`${environment.name}: an episode did not start`, () =>
    environment.start(task, options),
  );
}

/** Takes a step. Throws ERR_ENVIRONMENT if the environment fails. */
export function takeStep(
  { name }: Pick<Environment, "name">,
  episode: Pick<Episode, "step">,
  action: Action,
): Promise<StepResult> {
  return inEnvironment(`${name}: a step failed`, () => episode.step(action));
}

/** Closes an environment. A failure or a timeout is only a warning: what was played before is not lost. */
export async function closeEnvironment(
  environment: Pick<Environment, "name" | "close" | "stepTimeout">,
  warn: (line: string) => void = (line) => process.emitWarning(line),
): Promise<void> {
  try {
    await withTimeout(() => environment.close(), { stepTimeout: environment.stepTimeout });
  } catch (error) {
    warn(`${environment.name}: closing failed: ${messageOf(error)}`);
  }
}

/**
 * Returns the result of `work`. Turns an exception that is not an NlacError into ERR_ENVIRONMENT that
 * begins with `what`.
 */
export async function inEnvironment<T>(what: string, work: () => T | Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof NlacError) throw error;
    throw new NlacError("ERR_ENVIRONMENT", `${what}: ${messageOf(error)}`, { cause: error });
  }
}
