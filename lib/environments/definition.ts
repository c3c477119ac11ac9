/** What the author of an environment provides: tasks, tools or replies, a start and a score. */

import type { Action, StartOptions } from "../contract/environment.ts";
import type { Tool, ToolContext } from "./define-tool.ts";

/** A value or a promise of it. */
export type MaybePromise<T> = T | Promise<T>;

/** What `defineEnvironment` makes an environment from. */
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
  /**
   * The agent's tools: a list, or a function that makes the list for an episode. Required, except
   * with the action format "text", which has none.
   */
  tools?: readonly Tool<State, Task>[] | ((state: State, task: Task) => readonly Tool<State, Task>[]);
  /**
   * The answer of the person whom the agent speaks to. It may end the episode. Without `respond`,
   * an agent that speaks is told to use the tools. Required with the action format "text", where
   * it answers every action.
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
   * "text": there are no calls, an action is a thought and one line for `respond`. Default "tool".
   */
  actionFormat?: "tool" | "call" | "text";
  /** Timeout of `respond` in milliseconds. Infinity: none. Default 60,000. */
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
