/**
 * Checks of what an environment returns. It may be user code, so answers are checked and copied
 * before they are used and recorded: later changes of a returned object have no effect. Tools are
 * checked but not copied, because episodes share them.
 */

import { messageOf, NlacError } from "../base/errors.ts";
import { shown } from "../base/validation.ts";
import type { Environment, Episode, Message, Observation, StepResult } from "../contract/environment.ts";

/** A copy of the start of an episode. Throws ERR_ENVIRONMENT. */
export function checkedObservation(observation: Observation): Observation {
  const { messages, tools } = observation ?? {};
  const copied = checkedMessages(messages);
  if (tools === undefined) return { messages: copied };
  if (!Array.isArray(tools) || !tools.every((tool) => typeof tool?.name === "string"))
    throw new NlacError("ERR_ENVIRONMENT", "The tools of an observation must be a list of tools with names.");
  return { messages: copied, tools };
}

/** A copy of a step's result. Throws ERR_ENVIRONMENT. */
export function checkedStep(result: StepResult): StepResult {
  if (typeof result !== "object" || result === null)
    throw new NlacError(
      "ERR_ENVIRONMENT",
      `A step must return { observation, reward, terminated, truncated, info }; it returned ${shown(result)}.`,
    );
  const { observation, reward, terminated, truncated, score, info } = result;
  if (!Number.isFinite(reward))
    throw new NlacError(
      "ERR_ENVIRONMENT",
      `The reward of a step must be a finite number; it is ${shown(reward)}.`,
    );
  if (typeof terminated !== "boolean" || typeof truncated !== "boolean")
    throw new NlacError(
      "ERR_ENVIRONMENT",
      "A step must have two booleans: terminated (the task has ended) and truncated (a limit cut it short).",
    );
  if (score !== undefined && !Number.isFinite(score))
    throw new NlacError("ERR_ENVIRONMENT", "The score of a truncated episode must be a finite number.");
  return {
    ...{ reward, terminated, truncated },
    ...(score !== undefined && truncated && !terminated ? { score } : {}),
    observation: checkedMessages(observation),
    info: checkedInfo(info),
  };
}

/** The score of an episode that its environment did not end; 0 without one. Throws ERR_ENVIRONMENT. */
export async function checkedScore(episode: Pick<Episode, "score">): Promise<number> {
  const score = (await episode.score?.()) ?? 0;
  if (Number.isFinite(score)) return score;
  throw new NlacError("ERR_ENVIRONMENT", `score() must return a finite number; it returned ${score}.`);
}

/** The name of a task. Throws ERR_ENVIRONMENT if it is not a string. */
export function checkedTaskId<Task>(environment: Pick<Environment<Task>, "taskId">, task: Task): string {
  const id: unknown = environment.taskId(task);
  if (typeof id === "string") return id;
  throw new NlacError("ERR_ENVIRONMENT", `taskId must return a string, not ${typeof id}.`);
}

const roles: readonly unknown[] = ["system", "user", "assistant", "tool"] satisfies Message["role"][];

function checkedMessages(messages: unknown): Message[] {
  if (!Array.isArray(messages))
    throw new NlacError("ERR_ENVIRONMENT", "An observation must be a list of messages.");
  return messages.map((message, i): Message => {
    const { role, content } = message ?? {};
    if (roles.includes(role) && typeof content === "string") return { role, content };
    throw new NlacError(
      "ERR_ENVIRONMENT",
      `Message ${i + 1} of an observation must have a role and a string as its content, not ${asJson(message)}.`,
    );
  });
}

function checkedInfo(info: unknown): Record<string, unknown> {
  const copied: unknown = JSON.parse(asJson(info ?? {}));
  if (typeof copied === "object" && copied !== null && !Array.isArray(copied))
    return copied as Record<string, unknown>;
  throw new NlacError("ERR_ENVIRONMENT", "The info of a step must be an object.");
}

function asJson(value: unknown): string {
  try {
    return JSON.stringify(value) ?? "null";
  } catch (error) {
    throw new NlacError("ERR_ENVIRONMENT", `An answer cannot be written as JSON: ${messageOf(error)}`);
  }
}
