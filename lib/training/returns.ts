/**
 * Monte-Carlo values of actions (the HOPE paper, equation 3): the mean return of all recorded
 * episodes that take the same action in the same state.
 *
 *   Q̂(s, a) = 1 / |G(s, a)| · Σ_{(s_t, a_t) ∈ G(s, a)} Σ_{k=t}^{T-1} γ^{k-t} r(s_k, a_k)
 */

import { createHash } from "node:crypto";
import type { Environment } from "../contract/environment.ts";
import { isFaulty, rewardRounding, type Trajectory } from "../episodes/trajectory.ts";
import type { Conversation } from "../tokens/conversation.ts";

export interface ActionValue {
  /** The first episode that took the action there, and the turn. */
  trajectory: Trajectory;
  turn: number;
  state: Conversation;
  action: readonly number[];
  /** Q̂(s, a). */
  value: number;
  /** Returns averaged: |G(s, a)|. */
  count: number;
  /** Whether only branches, from their own action on, took the action there. */
  branched: boolean;
}

export interface ValueOptions {
  /** γ per turn. */
  discount: number;
  /**
   * Whether a branch also counts for the recorded actions before its own: those pairs are in it,
   * but what followed them was not the policy's choice.
   */
  prefixes: boolean;
}

/**
 * [turns]: the discounted return Σ_{k >= t} γ^{k-t} r_k from each turn t on. The cost of being cut
 * short belongs to the last turn, so that with γ = 1 the first return is the episode's reward.
 */
export function returnsFrom(
  { turns, reward }: Pick<Trajectory, "turns" | "reward">,
  discount: number,
): number[] {
  const cost = reward - turns.reduce((sum, turn) => sum + turn.reward, 0);
  const returns = turns.map((turn) => turn.reward);
  // The rewards of an episode are summed in another order: a difference of rounding is no cost.
  if (Math.abs(cost) > rewardRounding) returns[returns.length - 1]! += cost;
  for (let t = returns.length - 2; t >= 0; t--) returns[t]! += discount * returns[t + 1]!;
  return returns;
}

/**
 * Q̂ of every state and action, in order of their first occurrence. States and actions are the same
 * if their token ids are. Episodes that ended in a fault have no return and are left out.
 */
export function actionValues(
  trajectories: Iterable<Trajectory>,
  { discount, prefixes }: ValueOptions,
): ActionValue[] {
  const values = new Map<string, ActionValue & { sum: number }>();
  for (const trajectory of trajectories) {
    if (isFaulty(trajectory)) continue;
    const returns = returnsFrom(trajectory, discount);
    const begins = trajectory.branch?.turn ?? 0;
    for (const [turn, { state, tokens }] of trajectory.turns.entries()) {
      if (turn < begins && !prefixes) continue;
      const key = keyOf(state.tokens, tokens);
      const branched = trajectory.branch !== undefined && turn >= begins;
      const known = values.get(key);
      if (known === undefined) {
        const value = returns[turn]!;
        values.set(key, {
          ...{ trajectory, turn, state, action: tokens },
          ...{ value, sum: value, count: 1, branched },
        });
      } else {
        known.sum += returns[turn]!;
        known.count++;
        known.value = known.sum / known.count;
        known.branched &&= branched;
      }
    }
  }
  return [...values.values()].map(({ sum, ...value }) => value);
}

/** A key of token ids, of one state or of a state and an action. */
export function keyOf(...parts: (readonly number[])[]): string {
  const hash = createHash("sha256");
  for (const part of parts) {
    hash.update(Int32Array.of(part.length));
    hash.update(Int32Array.from(part));
  }
  return hash.digest("base64");
}

/**
 * Maps returns to [0, 1]: from the environment's `rewardRange`, or from the smallest and the
 * largest of `values`. Values outside of the range are clipped; a range of one value maps to 0.5.
 */
export function unitScale(
  scaling: "range" | "observed",
  { rewardRange: [low, high] = [0, 1] }: Pick<Environment, "rewardRange">,
  values: readonly number[],
): (value: number) => number {
  const from = scaling === "range" ? low : values.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
  const to = scaling === "range" ? high : values.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
  const isRange = to - from > rewardRounding;
  return (value) => (isRange ? Math.min(1, Math.max(0, (value - from) / (to - from))) : 0.5);
}
