/**
 * One's own environment from its tools: what an agent can do, what an episode starts from, and what it was worth at the
 * end. Everything else of the contract (turns, faults, refusals, aborts, many episodes at once) is done here, and in
 * tool-episode.ts.
 */

import { NlacError, throwIfAborted } from "../base/errors.ts";
import { checkKeys } from "../base/validation.ts";
import type { Action, Demonstration, Environment, ResetOptions } from "../contract/environment.ts";
import type { Tool, ToolContext } from "./define-tool.ts";
import { singleEpisode } from "./single-episode.ts";
import { offered, owning, ToolEpisode } from "./tool-episode.ts";

/** Given at once, or promised. */
export type Made<T> = T | Promise<T>;

export interface EnvironmentDefinition<Task, State> {
  name: string;
  /** What episodes start from, as lists or as functions that are asked once. */
  tasks: Record<"train" | "test", readonly Task[] | (() => Made<readonly Task[]>)>;
  /** A short name of a task, for logs and keys. Default: the task itself where it is a text, else its `id`. */
  taskId?(task: Task): string;
  /** Opens an episode: what it changes as it goes on. Every random choice is a function of `seed`. */
  start(task: Task, options: ResetOptions): Made<State>;
  /** What the agent is and what rules it follows. */
  system?: string;
  /** What an episode begins with: the first words of the person who is served, or the job to do. */
  prompt(task: Task, state: State): string;
  /** What the agent can do: a list, or one made for every episode from its state. */
  tools: readonly Tool<State, Task>[] | ((state: State, task: Task) => readonly Tool<State, Task>[]);
  /**
   * The person to whom the agent speaks: what they answer. They may end the episode. Without one, an agent that speaks is
   * told to use the tools.
   */
  respond?(text: string, context: ToolContext<State, Task>): Made<string>;
  /** What the episode was worth, 0 to 1; asked once, at its end. */
  score(state: State, task: Task): Made<number>;
  /** Turns after which an episode ends. Default 30. */
  maxTurns?: number;
  /**
   * As in `Environment`: whether that is a rule of the task. Default false, but for a single turn.
   */
  turnLimitEnds?: boolean;
  /**
   * How calls are written. "call": in the form of the model's own chat template, which must know one; "tool": as JSON after
   * a thought, for any model; to speak is then a tool, `respond`. Default "tool".
   */
  actionFormat?: "tool" | "call";
  /** Milliseconds that `respond` may take. Default 60,000. */
  timeout?: number;
  /** Called once with the state of every episode that started. */
  close?(state: State, task: Task): Made<void>;
  /** Called when the environment is closed, for what episodes share, a server say; a later episode may need it again. */
  dispose?(): Made<void>;
  /** As in `Environment`. */
  idle?: Action;
  /**
   * How a good agent plays the episode, for a warm-up: it is played, and every action is shown as one that is best. A
   * model that follows instructions needs none.
   */
  demonstrate?(task: Task, state: State): Made<DemonstratedTurn[]>;
}

/** A turn of a good agent. */
export interface DemonstratedTurn {
  /** With a thought. `callAction` makes calls. */
  action: Action;
  /** What follows up to the end of the task, in a sentence or two, as one could expect it before seeing the answer. */
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
    `${name}: a task is no text and has no text "id": give it a name by taskId.`,
  );
}

/**
 * An environment of tools.
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

  async function start(task: Task, options: ResetOptions): Promise<ToolEpisode<Task, State>> {
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

  async function demonstrate(task: Task, options: ResetOptions): Promise<Demonstration> {
    const episode = await start(task, options);
    try {
      const shown = await owning(`${name}: demonstrate failed`, () =>
        definition.demonstrate!(task, episode.state),
      );
      if (!Array.isArray(shown) || !shown.every((turn) => turn?.action && typeof turn.future === "string"))
        throw new NlacError(
          "ERR_ENVIRONMENT",
          `${name}: demonstrate must give a list of { action, future }.`,
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

  const driving = singleEpisode(name, start);
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
    ...driving,
    async close() {
      await driving.close();
      await owning(`${name}: closing failed`, () => definition.dispose?.());
    },
    ...(definition.idle && { idle: definition.idle }),
    ...(definition.demonstrate && { demonstrate }),
  };
}
