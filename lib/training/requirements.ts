/** What a training asks of its environment: before a model is loaded and warmed up for it, and where a method begins. */

import { NlacError } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";

/** The tasks of a split. Throws ERR_CONFIG where there are none. */
export async function requireTasks<Task>(
  environment: Pick<Environment<Task>, "name" | "tasks">,
  split: "train" | "test",
): Promise<Task[]> {
  const tasks = await environment.tasks(split);
  if (tasks.length > 0) return tasks;
  throw new NlacError("ERR_CONFIG", `${environment.name} has no tasks to ${split} on.`);
}

/** @throws NlacError ERR_CONFIG where actions are to be held to a form that they do not have */
export function requireForm(
  { name, actionFormat }: Pick<Environment, "name" | "actionFormat">,
  { constrainActions }: { constrainActions: boolean },
): void {
  if (!constrainActions || actionFormat === "tool") return;
  throw new NlacError(
    "ERR_CONFIG",
    `constrainActions: actions can be held to the format tool, and those of ${name} have the format ${actionFormat}.`,
  );
}

/** @throws NlacError ERR_CONFIG where an environment shows no scripted episodes, which warm-up and rehearsal learn from */
export function requireDemonstrations<Task>({
  name,
  demonstrate,
}: Pick<Environment<Task>, "name" | "demonstrate">): void {
  if (demonstrate !== undefined) return;
  throw new NlacError("ERR_CONFIG", `${name} has no scripted episodes to learn from.`);
}

/** @throws NlacError ERR_CONFIG where an environment does not say what should have been done */
export function requireHindsight({ name, hindsight }: Pick<Environment, "name" | "hindsight">): void {
  if (hindsight !== undefined) return;
  throw new NlacError("ERR_CONFIG", `${name} does not say what its observations tell in hindsight.`);
}
