import { describe, expect, test } from "vitest";
import type { Trajectory } from "../../lib/episodes/trajectory.ts";
import {
  groupAdvantages,
  groupMetrics,
  groupsOf,
  tokenWeights,
  turnAdvantages,
} from "../../lib/training/group-advantages.ts";

const sum = (values: ArrayLike<number>) => Array.from(values).reduce((a, b) => a + b, 0);

describe("advantages of a group", () => {
  const rewards = [1, 0, 0.5, 0];

  test("std: deviation from the mean in units of the sample's standard deviation", () => {
    const deviation = Math.sqrt((0.625 ** 2 + 2 * 0.375 ** 2 + 0.125 ** 2) / 3);
    const expected = [0.625, -0.375, 0.125, -0.375].map((away) => away / (deviation + 1e-4));
    for (const [i, advantage] of groupAdvantages(rewards, "std").entries())
      expect(advantage).toBeCloseTo(expected[i]!, 12);
  });

  test("mean-only: difference from the mean", () => {
    expect(groupAdvantages(rewards, "mean-only")).toEqual([0.625, -0.375, 0.125, -0.375]);
  });

  test("leave-one-out: difference from the mean of the others", () => {
    const expected = rewards.map((reward, i) => reward - sum(rewards.filter((_, j) => j !== i)) / 3);
    for (const [i, advantage] of groupAdvantages(rewards, "leave-one-out").entries())
      expect(advantage).toBeCloseTo(expected[i]!, 12);
  });

  test.each(["std", "mean-only", "leave-one-out"] as const)(
    "%s: 0 without another episode to compare with",
    (kind) => {
      expect(groupAdvantages([1, 1, 1], kind)).toEqual([0, 0, 0]);
      expect(groupAdvantages([1], kind)).toEqual([0]);
      expect(groupAdvantages([], kind)).toEqual([]);
    },
  );
});

test("episodes of a fault, and those without a turn, are in no group; a group of one has no deviation", () => {
  const played = [
    { reward: 0, outcome: "done", turns: [{}] },
    { reward: 1, outcome: "done", turns: [{}] },
    { reward: 9, outcome: "service-fault", turns: [{}] },
    { reward: 7, outcome: "context-limit", turns: [] },
    { reward: 1, outcome: "done", turns: [{}] },
    { reward: 5, outcome: "environment-fault", turns: [{}] },
  ] as unknown as Trajectory[];
  const rewards = groupsOf(played, 3).map((group) => group.map(({ reward }) => reward));
  expect(rewards).toEqual([[0, 1], [1]]);
  expect(groupMetrics(played, 3).reward_std).toBeCloseTo(Math.SQRT1_2, 12);
});

test("groups of equal rewards are counted whatever rounding makes of their deviation", () => {
  const played = (...rewards: number[]) =>
    rewards.map((reward) => ({ reward, outcome: "done", turns: [{}] }));
  const equal = [...played(0.1, 0.1, 0.1), ...played(0.8, 0.1 + 0.7, 0.8)];
  const groups = [...equal, ...played(0, 0.3, 0.6)] as unknown as Trajectory[];
  const { reward_std: deviation, frac_reward_zero_std: share } = groupMetrics(groups, 3);
  expect(share).toBe(2 / 3);
  expect(deviation).toBeCloseTo(0.1, 12);
});

test("token weights: equal per episode, equal per token, or by the most tokens possible", () => {
  const masks = [
    [1, 0, 1, 1],
    [1, 0, 0],
  ];
  const third = 1 / 6;
  expect(tokenWeights(masks, "sequence", 10)).toEqual([
    [third, 0, third, third],
    [1 / 2, 0, 0],
  ]);
  expect(tokenWeights(masks, "token", 10)).toEqual([
    [1 / 4, 0, 1 / 4, 1 / 4],
    [1 / 4, 0, 0],
  ]);
  expect(tokenWeights(masks, "constant", 10)).toEqual([
    [1 / 20, 0, 1 / 20, 1 / 20],
    [1 / 20, 0, 0],
  ]);
});

describe("advantages of turns", () => {
  const returns = [
    [[3, 2, 1], [1, 1], [2]],
    [[8, 0], [0]],
  ];

  test("a turn is compared with the same turn of its group; alone, it has none", () => {
    expect(turnAdvantages(returns, "mean-only", false)).toEqual([
      [[1, 0.5, 0], [-1, -0.5], [0]],
      [[4, 0], [-4]],
    ]);
    expect(turnAdvantages(returns, "leave-one-out", false)[0]).toEqual([[1.5, 1, 0], [-1.5, -1], [0]]);
    expect(turnAdvantages([[], [[]]], "std", true)).toEqual([[], [[]]]);
    expect(turnAdvantages([[[3]]], "std", true)).toEqual([[[0]]]);
  });

  test("normalized over the batch, all turns together have mean 0 and deviation 1", () => {
    const before = turnAdvantages(returns, "mean-only", false).flat(2);
    const after = turnAdvantages(returns, "mean-only", true).flat(2);
    const scale = Math.sqrt(sum(before.map((one) => one ** 2)) / (before.length - 1));
    for (const [i, one] of after.entries()) expect(one).toBeCloseTo(before[i]! / (scale + 1e-4), 12);
    expect(sum(after)).toBeCloseTo(0, 12);
  });
});
