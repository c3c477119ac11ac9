/** What a rollout leaves behind: an episode, its turns, and the transitions that training samples. */

import type { Action, Message } from "../contract/environment.ts";
import type { Conversation } from "../tokens/conversation.ts";

/** Why an episode ended. The last three are faults: such an episode says so and the run goes on. */
export type Outcome =
  | "done" // the environment said so
  | "turn-limit"
  | "truncated" // the environment cut it short of its turns
  | "context-limit" // the next prompt would not fit into the model's context
  | "malformed" // too many unreadable actions in a row
  | "environment-fault"
  | "service-fault";

export interface Turn {
  /** s: the conversation before this action; its generation prompt is not part of it. */
  state: Conversation;
  /** a, all ids as they were written, reasoning included: what the policy is trained on. */
  tokens: number[];
  /** Of each id, under the untouched distribution. */
  logProbs: Float32Array;
  text: string;
  /** a, as it was read; absent when it could not be. */
  action?: Action;
  /** Why it could not be read. */
  malformed?: string;
  /**
   * o: what came back. s' is the state with a and o appended, a without the reasoning that the chat
   * template drops.
   */
  observation: Message[];
  reward: number;
  /**
   * True on the last turn of an episode that ended: by its environment, by a rule, or by actions
   * that nobody could read.
   */
  terminated: boolean;
  /**
   * True on the last turn of an episode that a limit or a fault cut short: what would have followed
   * is not known.
   */
  truncated: boolean;
  info: Record<string, unknown>;
}

export interface Trajectory {
  /** Number of the episode within its run. */
  id: number;
  /** The environment's name for the task. */
  task: string;
  seed: number;
  /** The task's messages. Absent where it could not begin, or went on from another episode. */
  opening?: readonly Message[];
  turns: Turn[];
  /** Everything, to the last observation. */
  conversation: Conversation;
  /** Sum of the turns' rewards, and what it costs to be cut short (`costOfLeaving`). */
  reward: number;
  outcome: Outcome;
  /** Of a fault: its code and message. */
  fault?: { code: string; message: string };
}

/** One sample of the replay buffer: (s, a, r, s', terminated) and where it comes from. */
export interface Transition {
  trajectory: number;
  turn: number;
  state: Conversation;
  action: readonly number[];
  observation: readonly Message[];
  reward: number;
  /** All that the episode has brought so far, this turn's reward included. */
  received: number;
  /**
   * Whether the outcome stands in the place of a future. A truncated episode has none: its future
   * is bootstrapped.
   */
  terminated: boolean;
  truncated: boolean;
}

/** Whether an environment or a service broke the episode, so that its reward is not known. */
export function isFaulty({ outcome }: Pick<Trajectory, "outcome">): boolean {
  return outcome === "environment-fault" || outcome === "service-fault";
}

/** Whether the episode succeeded: as its last step says in `info.success`, else by a total reward of 1. */
export function succeeded({
  turns,
  reward,
}: {
  turns: readonly Pick<Turn, "info">[];
  reward: number;
}): boolean {
  const told = turns.at(-1)?.info.success;
  return typeof told === "boolean" ? told : reward >= 1;
}

/** The transitions of an episode. A fault's last turn has no known outcome, so it is left out. */
export function transitionsOf(trajectory: Trajectory): Transition[] {
  const turns = isFaulty(trajectory) ? trajectory.turns.slice(0, -1) : trajectory.turns;
  let received = 0;
  return turns.map((turn, i) => {
    received += turn.reward;
    const { state, tokens: action, observation, reward, terminated, truncated } = turn;
    return {
      ...{ trajectory: trajectory.id, turn: i, state, action, observation },
      ...{ reward, received, terminated, truncated },
    };
  });
}

/** Those of many episodes, one episode at a time. */
export function* transitionsOfAll(trajectories: Iterable<Trajectory>): Generator<Transition> {
  for (const trajectory of trajectories) yield* transitionsOf(trajectory);
}
