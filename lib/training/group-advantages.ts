/**
 * Advantages of episodes relative to a group on the same task, and the loss weights of their
 * tokens: what GRPO and the methods derived from it share.
 */

import { isFaulty, rewardRounding, type Trajectory } from "../episodes/trajectory.ts";
import { deviation, mean } from "../statistics/mean.ts";

/** See algorithms/grpo.ts. */
export const advantageKinds = ["std", "mean-only", "leave-one-out"] as const;
export const normalizations = ["sequence", "token", "constant"] as const;

export type AdvantageKind = (typeof advantageKinds)[number];
export type Normalization = (typeof normalizations)[number];

/** The groups, without episodes that have no reward or no policy tokens. */
export function groupsOf(trajectories: readonly Trajectory[], size: number): Trajectory[][] {
  const groups: Trajectory[][] = [];
  for (let start = 0; start < trajectories.length; start += size) {
    const group = trajectories.slice(start, start + size);
    groups.push(group.filter((trajectory) => !isFaulty(trajectory) && trajectory.turns.length > 0));
  }
  return groups;
}

/** Keeps a group of equal rewards from a division by 0. */
const minDeviation = 1e-4;

/** Advantages of a group's rewards; 0 for a group of one. */
export function groupAdvantages(rewards: readonly number[], kind: AdvantageKind): number[] {
  const n = rewards.length;
  if (n < 2) return rewards.map(() => 0);
  const average = mean(rewards);
  // The mean of the others is (n · average - R) / (n - 1).
  const scale = {
    std: 1 / (deviation(rewards) + minDeviation),
    "mean-only": 1,
    "leave-one-out": n / (n - 1),
  };
  return rewards.map((reward) => (reward - average) * scale[kind]);
}

/**
 * Advantages of turns: each return relative to those of the same turn in the group's other
 * episodes.
 *
 * @param returns per group, episode and turn
 * @param wholeBatch then also normalizes over all turns, to mean 0 and deviation 1
 */
export function turnAdvantages(
  returns: readonly (readonly (readonly number[])[])[],
  kind: AdvantageKind,
  wholeBatch: boolean,
): number[][][] {
  const advantages = returns.map((group) => {
    const compared = group.map(() => [] as number[]);
    const longest = Math.max(0, ...group.map(({ length }) => length));
    for (let turn = 0; turn < longest; turn++) {
      const reached = group.flatMap(({ length }, i) => (turn < length ? [i] : []));
      const relative = groupAdvantages(
        reached.map((i) => group[i]![turn]!),
        kind,
      );
      for (const [j, i] of reached.entries()) compared[i]!.push(relative[j]!);
    }
    return compared;
  });
  const all = advantages.flat(2);
  if (!wholeBatch || all.length < 2) return advantages;
  const centre = mean(all);
  const scale = 1 / (deviation(all) + minDeviation);
  return advantages.map((group) => group.map((own) => own.map((one) => (one - centre) * scale)));
}

/** Names as in TRL. */
export function groupMetrics(trajectories: readonly Trajectory[], size: number): Record<string, number> {
  const groups = groupsOf(trajectories, size)
    .filter(({ length }) => length > 1)
    .map((group) => group.map(({ reward }) => reward));
  return {
    reward_std: mean(groups.map(deviation)),
    // Not by a deviation of 0, which rounding makes positive for rewards such as 0.1.
    frac_reward_zero_std: mean(
      groups.map((rewards) => Number(rewards.every((one) => Math.abs(one - rewards[0]!) <= rewardRounding))),
    ),
  };
}

/**
 * Loss weights of a batch's tokens, from their masks (1 for policy tokens).
 * @param most tokens that the policy can generate in an episode
 */
export function tokenWeights(
  masks: readonly (readonly number[])[],
  normalization: Normalization,
  most: number,
): number[][] {
  const lengths = masks.map((mask) => mask.reduce((sum, one) => sum + one, 0));
  const all = lengths.reduce((sum, length) => sum + length, 0);
  return masks.map((mask, i) => {
    const divisor = {
      sequence: masks.length * lengths[i]!,
      token: all,
      constant: masks.length * most,
    }[normalization];
    return mask.map((one) => one / divisor);
  });
}
