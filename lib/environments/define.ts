/**
 * Defines an environment from tools, an initial state and a final score. The rest of the contract
 * (turns, faults, refusals, aborts, many episodes at once) is implemented here and in
 * tool-episode.ts.
 */

import { NlacError, throwIfAborted } from "../base/errors.ts";
import { checkKeys } from "../base/validation.ts";
import type { Action, Demonstration, Environment, StartOptions } from "../contract/environment.ts";
import type { Tool, ToolContext } from "./define-tool.ts";
import { offered, owning, ToolEpisode } from "./tool-episode.ts";

/** A value or a promise of it. */
export type MaybePromise<T> = T | Promise<T>;

export interface EnvironmentDefinition<Task, State> {
  name: string;
  /** The tasks of each split, as a list or as a function that is called once. */
  tasks: Record<"train" | "test", readonly Task[] | (() => MaybePromise<readonly Task[]>)>;
  /**
   * A short name of a task, for logs and keys. Default: the task if it is a string, else its `id`.
   */
  taskId?(task: Task): string;
  /**
   * Opens an episode and returns its mutable state. Every random choice must be a function of
   * `seed`.
   */
  start(task: Task, options: StartOptions): MaybePromise<State>;
  /** System prompt: the agent's role and the rules it follows. */
  system?: string;
  /** First message of an episode: the user's first words, or the job to do. */
  prompt(task: Task, state: State): string;
  /** The agent's tools: a list, or a function that makes the list for an episode. */
  tools: readonly Tool<State, Task>[] | ((state: State, task: Task) => readonly Tool<State, Task>[]);
  /**
   * The answer of the person whom the agent speaks to. It may end the episode. Without `respond`,
   * an agent that speaks is told to use the tools.
   */
  respond?(text: string, context: ToolContext<State, Task>): MaybePromise<string>;
  /** The episode's reward, 0 to 1; called once, at its end. */
  score(state: State, task: Task): MaybePromise<number>;
  /** Number of turns after which an episode ends. Default 30. */
  maxTurns?: number;
  /**
   * Whether `maxTurns` is a rule of the task, as in `Environment`. Default false, except for a
   * single turn.
   */
  turnLimitEnds?: boolean;
  /**
   * How calls are written. "call": in the form of the model's chat template, which must support
   * calls. "tool": as JSON after a thought, for any model; speaking is then a tool, `respond`.
   * Default "tool".
   */
  actionFormat?: "tool" | "call";
  /** Timeout of `respond` in milliseconds. Default 60,000. */
  timeout?: number;
  /** Called once with the state of every episode that started. */
  close?(state: State, task: Task): MaybePromise<void>;
  /**
   * Called when the environment is closed, to free what episodes share, such as a server. Later
   * episodes may need it again.
   */
  dispose?(): MaybePromise<void>;
  /** As in `Environment`. */
  idle?: Action;
  /**
   * A good agent's turns, for a warm-up: they are played, and each action is taught as the best
   * one. Instruction-tuned models do not need this.
   */
  demonstrate?(task: Task, state: State): MaybePromise<DemonstratedTurn[]>;
}

/** A turn of a good agent. */
export interface DemonstratedTurn {
  /** Includes a thought. `callAction` makes calls. */
  action: Action;
  /**
   * What is likely to follow up to the end of the task, in a sentence or two, without knowledge of
   * the answer.
   */
  future: string;
}

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
  checkKeys(definition, "defineEnvironment", definitionKeys, "ERR_CONFIG");
  for (const part of ["name", "tasks", "start", "prompt", "tools", "score"] as const)
    if (definition[part] === undefined)
      throw new NlacError("ERR_CONFIG", `defineEnvironment: ${part} is missing.`);
  const { name, maxTurns = 30, actionFormat = "tool", turnLimitEnds = maxTurns === 1 } = definition;
  if (Array.isArray(definition.tools)) offered(definition, definition.tools);
  const lists = new Map<string, Promise<readonly Task[]>>();

  async function start(task: Task, options: StartOptions): Promise<ToolEpisode<Task, State>> {
    throwIfAborted(options.signal);
    const state = await owning(`${name}: an episode did not start`, () => definition.start(task, options));
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
      const shown = await owning(`${name}: demonstrate failed`, () =>
        definition.demonstrate!(task, episode.state),
      );
      if (!Array.isArray(shown) || !shown.every((turn) => turn?.action && typeof turn.future === "string"))
        throw new NlacError(
          "ERR_ENVIRONMENT",
          `${name}: demonstrate must return a list of { action, future }.`,
        );
      const turns: Demonstration["turns"] = [];
      for (const [i, { action, future }] of shown.entries()) {
        const { observation, reward, terminated } = await episode.step(action);
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

  return {
    name,
    actionFormat,
    maxTurns,
    turnLimitEnds,
    async tasks(split) {
      const given = definition.tasks[split];
      let list = lists.get(split);
      if (list === undefined) {
        list = owning(`${name}: the ${split} tasks cannot be had`, () =>
          typeof given === "function" ? given() : given,
        );
        lists.set(split, list);
        list.catch(() => lists.delete(split));
      }
      return [...(await list)];
    },
    taskId: (task) => definition.taskId?.(task) ?? ownName(task, name),
    start,
    close: () => owning(`${name}: closing failed`, () => definition.dispose?.()),
    ...(definition.idle && { idle: definition.idle }),
    ...(definition.demonstrate && { demonstrate }),
  };
}
