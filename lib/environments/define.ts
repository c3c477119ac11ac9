/**
 * Defines an environment from tools or replies, an initial state and a final score. The rest of the
 * contract (turns, faults, refusals, aborts, many episodes at once) is implemented here and in
 * tool-episode.ts.
 */

import { NlacError, throwIfAborted } from "../base/errors.ts";
import { getOrAdd } from "../base/get-or-add.ts";
import { checkKeys, isObject, shown } from "../base/validation.ts";
import { inEnvironment, requireDescription } from "../contract/checks.ts";
import {
  type Demonstration,
  type Environment,
  isOver,
  type StartOptions,
  type StepResult,
} from "../contract/environment.ts";
import type { EnvironmentDefinition } from "./definition.ts";
import { offered, ToolEpisode } from "./tool-episode.ts";

const definitionKeys = [
  "name",
  "tasks",
  "taskId",
  "start",
  "system",
  "prompt",
  "tools",
  "respond",
  "score",
  "maxTurns",
  "turnLimitEnds",
  "actionFormat",
  "timeout",
  "close",
  "dispose",
  "idle",
  "demonstrate",
] as const satisfies readonly (keyof EnvironmentDefinition<unknown, unknown>)[];

/** Parts that must be functions if they are given. */
const functions = [
  "start",
  "prompt",
  "respond",
  "score",
  "taskId",
  "close",
  "dispose",
  "demonstrate",
] as const;

/** Throws ERR_CONFIG for parts of a wrong type, which TypeScript would have refused. */
function checkParts<Task, State>(definition: EnvironmentDefinition<Task, State>): void {
  const { name, tasks, system } = definition;
  const refuse = (part: string, expected: string, value: unknown) => {
    throw new NlacError("ERR_CONFIG", `${name}: ${part} must be ${expected}; it is ${shown(value)}.`);
  };
  for (const part of functions)
    if (definition[part] !== undefined && typeof definition[part] !== "function")
      refuse(part, "a function", definition[part]);
  if (system !== undefined && typeof system !== "string") refuse("system", "a text", system);
  if (!isObject(tasks)) refuse("tasks", "{ train, test }, each a list or a function that returns one", tasks);
  checkKeys(tasks, `${name}: tasks`, ["train", "test"], "ERR_CONFIG");
  for (const split of ["train", "test"] as const)
    if (!Array.isArray(tasks[split]) && typeof tasks[split] !== "function")
      refuse(`tasks.${split}`, "a list, or a function that returns one", tasks[split]);
}

function ownName(task: unknown, name: string): string {
  const id = typeof task === "string" ? task : (task as { id?: unknown } | null)?.id;
  if (typeof id === "string") return id;
  throw new NlacError(
    "ERR_CONFIG",
    `${name}: a task is neither a string nor has a string "id". Name it with taskId.`,
  );
}

/**
 * Returns an environment.
 *
 * @throws NlacError ERR_CONFIG for a definition with unknown or contradictory parts
 */
export function defineEnvironment<Task, State>(
  definition: EnvironmentDefinition<Task, State>,
): Environment<Task> {
  if (!isObject(definition))
    throw new NlacError("ERR_CONFIG", `defineEnvironment takes a definition, not ${shown(definition)}.`);
  checkKeys(definition, "defineEnvironment", definitionKeys, "ERR_CONFIG");
  const { name, maxTurns = 30, actionFormat = "tool", turnLimitEnds = maxTurns === 1 } = definition;
  const answers = actionFormat === "text" ? "respond" : "tools";
  for (const part of ["name", "tasks", "start", "prompt", answers, "score"] as const)
    if (definition[part] === undefined)
      throw new NlacError("ERR_CONFIG", `defineEnvironment: ${part} is missing.`);
  if (actionFormat === "text" && definition.tools !== undefined)
    throw new NlacError("ERR_CONFIG", `${name}: the action format "text" has no calls: leave out the tools.`);
  checkParts(definition);
  if (definition.tools !== undefined && typeof definition.tools !== "function")
    offered(definition, definition.tools);
  if (definition.timeout !== undefined && !(definition.timeout > 0))
    throw new NlacError(
      "ERR_CONFIG",
      `${name}: timeout must be a positive number, in milliseconds; it is ${definition.timeout}.`,
    );
  const lists = new Map<string, Promise<readonly Task[]>>();

  async function start(task: Task, options: StartOptions): Promise<ToolEpisode<Task, State>> {
    throwIfAborted(options.signal);
    const state = await inEnvironment(`${name}: an episode did not start`, () =>
      definition.start(task, options),
    );
    const episode = new ToolEpisode(definition, task, state, { maxTurns, turnLimitEnds }, options.signal);
    try {
      throwIfAborted(options.signal);
      await episode.open();
      return episode;
    } catch (error) {
      await episode.close();
      throw error;
    }
  }

  async function demonstrate(task: Task, options: StartOptions): Promise<Demonstration> {
    const episode = await start(task, options);
    try {
      const shown = await inEnvironment(`${name}: demonstrate failed`, () =>
        definition.demonstrate!(task, episode.state),
      );
      if (!Array.isArray(shown) || !shown.every((turn) => turn?.action && typeof turn.future === "string"))
        throw new NlacError(
          "ERR_ENVIRONMENT",
          `${name}: demonstrate must return a list of { action, future }.`,
        );
      const turns: Demonstration["turns"] = [];
      let isEnded = false;
      for (const [i, { action, future }] of shown.entries()) {
        const refuse = (why: string) => {
          throw new NlacError("ERR_ENVIRONMENT", `${name}: demonstrate, turn ${i + 1}: ${why}`);
        };
        if (isEnded) refuse(`the episode ended after turn ${i}.`);
        const result: StepResult = await episode.step(action);
        const { observation, reward, terminated, info } = result;
        // Each action is taught as the best one.
        if (info.toolError === true) refuse(`the call was refused. ${observation[0]?.content}`);
        isEnded = isOver(result);
        const outcome = {
          ...{ observation, reward, terminated },
          ...{ future: shown[i + 1]?.future ?? future, joined: future },
        };
        turns.push({ action, judged: [{ action, future, better: action, outcome }], observation });
      }
      return { observation: episode.observation, turns };
    } finally {
      await episode.close();
    }
  }

  const environment: Environment<Task> = {
    name,
    actionFormat,
    maxTurns,
    turnLimitEnds,
    async tasks(split) {
      const given = definition.tasks[split];
      const list = getOrAdd(lists, split, () => {
        const listed = inEnvironment(`${name}: the ${split} tasks cannot be listed`, async () => {
          const tasks = await (typeof given === "function" ? given() : given);
          if (Array.isArray(tasks)) return tasks as readonly Task[];
          throw new Error(`the function returned ${shown(tasks)} instead of a list`);
        });
        listed.catch(() => lists.delete(split));
        return listed;
      });
      return [...(await list)];
    },
    taskId: (task) => definition.taskId?.(task) ?? ownName(task, name),
    start,
    close: () => inEnvironment(`${name}: closing failed`, () => definition.dispose?.()),
    ...(definition.idle && { idle: definition.idle }),
    ...(definition.demonstrate && { demonstrate }),
  };
  requireDescription(environment, name);
  return environment;
}
