/** Results of a rollout: an episode, its turns, and the transitions that training samples. */

import type { Action, Message, PrivilegedInformation } from "../contract/environment.ts";
import type { Conversation } from "../tokens/conversation.ts";

/**
 * Why an episode ended. The last three are faults: only the episode fails, and the run continues.
 */
export type Outcome =
  | "done" // the environment terminated it
  | "turn-limit"
  | "truncated" // the environment truncated it before its turn limit
  | "context-limit" // the next prompt would not fit into the model's context
  | "malformed" // too many consecutive unreadable actions
  | "environment-fault"
  | "service-fault";

/** One turn of an episode. */
export interface Turn {
  /** s: the conversation before this action, without the generation prompt. */
  state: Conversation;
  /** a: all generated ids including reasoning. The policy is trained on them. */
  tokens: number[];
  /** Log probability of each id under the unmodified distribution. */
  logProbs: Float32Array;
  text: string;
  /** a, parsed; absent if that failed. */
  action?: Action;
  /** Why a could not be parsed. */
  malformed?: string;
  /**
   * o: the observation. s' is the state with a and o appended, where a lacks the reasoning that the
   * chat template drops.
   */
  observation: Message[];
  reward: number;
  /**
   * True on the last turn of an episode that ended by its environment, by a rule, or by unreadable
   * actions.
   */
  terminated: boolean;
  /**
   * True on the last turn of an episode that a limit or a fault cut short: what would have followed
   * is unknown.
   */
  truncated: boolean;
  info: Record<string, unknown>;
}

/** An episode that was played. */
export interface Trajectory {
  /** Number of the episode within its run. */
  id: number;
  /** The environment's name for the task. */
  task: string;
  seed: number;
  /** The task's messages. Absent if the episode could not begin, or continues another one. */
  opening?: readonly Message[];
  turns: Turn[];
  /** The whole conversation, to the last observation. */
  conversation: Conversation;
  /**
   * Sum of the turns' rewards, plus the cost of being cut short (`costOfLeaving`) or the score of a
   * truncated episode.
   */
  reward: number;
  outcome: Outcome;
  /** Code and message of a fault. */
  fault?: { code: string; message: string };
  /** What the agent was not told; read by methods that look back at the episode. */
  privileged?: PrivilegedInformation;
  /**
   * For a branch: the number of the episode that it repeats, and the turn, from 0, from which it
   * differs.
   */
  branch?: { trajectory: number; turn: number };
}

/** What really followed a turn in its episode. */
export interface Rest {
  /** The later turns, in order. */
  turns: readonly Pick<Turn, "action" | "observation" | "reward">[];
  /** Total reward of the episode; absent if a limit or a fault cut it short. */
  score?: number;
}

/** One sample of the replay buffer: (s, a, r, s', terminated) and its origin. */
export interface Transition {
  trajectory: number;
  turn: number;
  state: Conversation;
  action: readonly number[];
  observation: readonly Message[];
  reward: number;
  /** Sum of the episode's rewards so far, including this turn's. */
  received: number;
  /** Whether the outcome replaces the bootstrapped future. False for a truncated episode. */
  terminated: boolean;
  truncated: boolean;
  /** What followed, for Monte-Carlo targets. */
  rest: Rest;
}

/**
 * Whether a fault of the environment or a service ended the episode, so that its reward is unknown.
 */
export function isFaulty({ outcome }: Pick<Trajectory, "outcome">): boolean {
  return outcome === "environment-fault" || outcome === "service-fault";
}

/**
 * Differences up to this are none: rewards are added up. Ten of 0.1 are 0.9999999999999999, and the
 * mean of three returns of 0.7 is 0.6999999999999998.
 */
export const rewardRounding = 1e-9;

/** Whether a total reward is at least `least`, apart from rounding. */
export function reaches({ reward }: Pick<Trajectory, "reward">, least: number): boolean {
  return reward >= least - rewardRounding;
}

/** Whether the episode succeeded: `info.success` of its last step, or else a total reward of 1. */
export function succeeded({
  turns,
  reward,
}: {
  turns: readonly Pick<Turn, "info">[];
  reward: number;
}): boolean {
  const told = turns.at(-1)?.info.success;
  return typeof told === "boolean" ? told : reaches({ reward }, 1);
}

/**
 * The transitions of an episode. The last turn of a faulty episode has no known outcome and is left
 * out.
 */
export function transitionsOf(trajectory: Trajectory): Transition[] {
  const turns = isFaulty(trajectory) ? trajectory.turns.slice(0, -1) : trajectory.turns;
  // Only what is read later, so that a replay buffer does not hold the rest.
  const followed = turns.map(({ action, observation, reward }) => ({
    ...(action === undefined ? {} : { action }),
    observation,
    reward,
  }));
  const score = turns.at(-1)?.terminated ? { score: turns.reduce((sum, { reward }) => sum + reward, 0) } : {};
  let received = 0;
  return turns.map((turn, i) => {
    received += turn.reward;
    const { state, tokens: action, observation, reward, terminated, truncated } = turn;
    return {
      ...{ trajectory: trajectory.id, turn: i, state, action, observation },
      ...{ reward, received, terminated, truncated },
      rest: { turns: followed.slice(i + 1), ...score },
    };
  });
}

/** Items that are at hand, or arrive one by one. */
export type Stream<T> = Iterable<T> | AsyncIterable<T>;

/**
 * The transitions that no other episode has: of a branch those from its own action on. The episode
 * that it repeats has the earlier ones.
 */
export function ownTransitionsOf(trajectory: Trajectory): Transition[] {
  return transitionsOf(trajectory).slice(trajectory.branch?.turn ?? 0);
}

/** The own transitions of many episodes, one episode in memory at a time. */
export async function* transitionsOfAll(trajectories: Stream<Trajectory>): AsyncGenerator<Transition> {
  for await (const trajectory of trajectories) yield* ownTransitionsOf(trajectory);
}
