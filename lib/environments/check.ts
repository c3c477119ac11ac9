/**
 * Plays an environment with a scripted agent and reports what breaks the contract (contract.ts): for tests of
 * environments, one's own included.
 */

import { NlacError } from "../errors.ts";
import type { Action, Environment, Message, Observation, StepResult } from "./contract.ts";

/** What the agent does, given the task's messages and what came since. */
export type ScriptedPolicy = (state: {
  observation: Observation;
  history: readonly { action: Action; result: StepResult }[];
}) => Action;

export interface CheckOptions {
  /** Tasks of each split to play. Default 3. */
  tasks?: number;
  /** Default 0. */
  seed?: number;
}

/** The contract's breaches, one line each; empty when there are none. */
export async function checkEnvironment<Task>(
  environment: Environment<Task>,
  policy: ScriptedPolicy,
  options: CheckOptions = {},
): Promise<string[]> {
  const problems: string[] = [];
  const seed = options.seed ?? 0;
  if (environment.name === "") problems.push("name is empty");
  if (!Number.isInteger(environment.maxTurns) || environment.maxTurns < 1) {
    problems.push(`maxTurns is ${environment.maxTurns}`);
  }
  if (!["text", "tool", "solution"].includes(environment.actionFormat)) {
    problems.push(`actionFormat is ${environment.actionFormat}`);
  }
  if (environment.actionFormat === "solution" && environment.maxTurns !== 1) {
    problems.push("a solution environment must have a single turn");
  }
  if (environment.singleStep === true && environment.maxTurns !== 1) {
    problems.push("a single-step environment must have a single turn");
  }

  const idsOf: Record<string, Set<string>> = {};
  for (const split of ["train", "test"] as const) {
    const tasks = await environment.tasks(split);
    const again = await environment.tasks(split);
    if (tasks.length === 0) problems.push(`${split}: no tasks`);
    const ids = tasks.map((task) => environment.taskId(task));
    idsOf[split] = new Set(ids);
    if (idsOf[split].size !== ids.length) problems.push(`${split}: two tasks have the same id`);
    if (ids.some((id) => id === "")) problems.push(`${split}: a task has an empty id`);
    if (again.map((task) => environment.taskId(task)).join("\n") !== ids.join("\n")) {
      problems.push(`${split}: tasks() gives another list the second time`);
    }
    for (const task of tasks.slice(0, options.tasks ?? 3)) {
      const label = `${split} ${environment.taskId(task)}`;
      const first = await play(environment, task, seed, policy, label, problems);
      const second = await play(environment, task, seed, policy, label, []);
      if (first !== second) problems.push(`${label}: the same seed and actions give another episode`);
      await checkIndependence(environment, task, seed, policy, label, problems);
    }
  }
  const shared = [...idsOf.train!].filter((id) => idsOf.test!.has(id));
  if (shared.length > 0) problems.push(`in both splits: ${shared.slice(0, 3).join(", ")}`);

  const [task] = await environment.tasks("train");
  if (task !== undefined) {
    await checkDriver(environment, task, seed, policy, problems);
    await checkAbort(environment, task, seed, problems);
  }
  await environment.close();
  await environment.close();
  return [...new Set(problems)];
}

/** One episode, checked; its transcript as text. */
async function play<Task>(
  environment: Environment<Task>,
  task: Task,
  seed: number,
  policy: ScriptedPolicy,
  label: string,
  problems: string[],
): Promise<string> {
  const episode = await environment.start(task, { seed });
  const { observation } = episode;
  if (observation.messages.length === 0) problems.push(`${label}: the first observation has no messages`);
  if (observation.messages.at(-1)?.role !== "user")
    problems.push(`${label}: the first turn is not the user's`);
  checkMessages(observation.messages, ["system", "user", "assistant", "tool"], label, problems);
  const history: { action: Action; result: StepResult }[] = [];
  let total = 0;
  for (let turn = 0; ; turn++) {
    if (turn === environment.maxTurns) {
      problems.push(`${label}: not done after ${environment.maxTurns} turns`);
      break;
    }
    const action = policy({ observation, history });
    const result = await episode.step(action);
    history.push({ action, result });
    if (!Number.isFinite(result.reward)) problems.push(`${label}: reward ${result.reward}`);
    if (typeof result.done !== "boolean") problems.push(`${label}: done is not a boolean`);
    if (typeof result.info !== "object" || result.info === null)
      problems.push(`${label}: info is not an object`);
    if (!result.done && result.observation.length === 0)
      problems.push(`${label}: nothing to answer, and not done`);
    checkMessages(result.observation, ["user", "tool"], label, problems);
    total += result.reward;
    if (result.done) {
      const refused = await episode.step(action).then(
        () => false,
        (error: unknown) => error instanceof NlacError && error.code === "ERR_ENVIRONMENT",
      );
      if (!refused) problems.push(`${label}: a step after the end is not refused with ERR_ENVIRONMENT`);
      break;
    }
  }
  if (total < 0 || total > 1) problems.push(`${label}: the episode's reward is ${total}, outside of [0, 1]`);
  await episode.close();
  await episode.close();
  return JSON.stringify([observation, history.map(({ result }) => result)]);
}

/** Two episodes of one task, stepped in turn, must not see each other. */
async function checkIndependence<Task>(
  environment: Environment<Task>,
  task: Task,
  seed: number,
  policy: ScriptedPolicy,
  label: string,
  problems: string[],
): Promise<void> {
  const [a, b] = [await environment.start(task, { seed }), await environment.start(task, { seed })];
  const action = policy({ observation: a.observation, history: [] });
  const first = await a.step(action);
  const second = await b.step(action);
  if (JSON.stringify(first) !== JSON.stringify(second))
    problems.push(`${label}: two episodes disturb each other`);
  await Promise.all([a.close(), b.close()]);
}

async function checkDriver<Task>(
  environment: Environment<Task>,
  task: Task,
  seed: number,
  policy: ScriptedPolicy,
  problems: string[],
): Promise<void> {
  const episode = await environment.start(task, { seed });
  const observation = await environment.reset(task, { seed });
  if (JSON.stringify(observation) !== JSON.stringify(episode.observation)) {
    problems.push("reset and start give different observations");
  }
  const action = policy({ observation, history: [] });
  if (JSON.stringify(await environment.step(action)) !== JSON.stringify(await episode.step(action))) {
    problems.push("step answers otherwise than an episode's step");
  }
  await episode.close();
  await environment.close();
  const refused = await environment.step(action).then(
    () => false,
    (error: unknown) => error instanceof NlacError,
  );
  if (!refused) problems.push("a step without reset is not refused");
}

async function checkAbort<Task>(
  environment: Environment<Task>,
  task: Task,
  seed: number,
  problems: string[],
): Promise<void> {
  const outcome = await environment.start(task, { seed, signal: AbortSignal.abort() }).then(
    () => "started",
    (error: unknown) => (error instanceof NlacError ? error.code : String(error)),
  );
  if (outcome !== "ERR_ABORTED")
    problems.push(`start under an aborted signal: ${outcome} instead of ERR_ABORTED`);
}

function checkMessages(
  messages: readonly Message[],
  roles: readonly string[],
  label: string,
  problems: string[],
): void {
  for (const message of messages) {
    if (!roles.includes(message.role)) problems.push(`${label}: a message of role ${message.role}`);
    if (typeof message.content !== "string" || message.content === "")
      problems.push(`${label}: an empty message`);
  }
}
