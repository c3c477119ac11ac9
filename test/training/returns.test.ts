import { describe, expect, test } from "vitest";
import type { Trajectory } from "../../lib/episodes/trajectory.ts";
import { hopeConfig } from "../../lib/training/hope-config.ts";
import { actionValues, keyOf, returnsFrom, unitScale } from "../../lib/training/returns.ts";
import { iterationData, type LabelledAction, rewardData } from "../../lib/training/reward-data.ts";
import { errandEnvironment, play } from "../support/errand.ts";

const act = (word: string) => `Thought:\nhm\nAction:\n${word}`;

/** An episode that says `words`, with a reward for each. */
async function episode(words: string[], rewards: number[], changes: Partial<Trajectory> = {}) {
  const script = words.map(act);
  const environment = errandEnvironment({ turns: words.length });
  const [trajectory] = await play(() => script.shift()!, environment);
  for (const [t, turn] of trajectory!.turns.entries()) turn.reward = rewards[t]!;
  return { ...trajectory!, reward: rewards.reduce((a, b) => a + b, 0), ...changes };
}

test("returns are the discounted rewards from each turn on, with the cost of being cut short at the end", async () => {
  const trajectory = await episode(["map", "lamp", "soap"], [1, 2, 4]);
  expect(returnsFrom(trajectory, 1)).toEqual([7, 6, 4]);
  expect(returnsFrom(trajectory, 0.5)).toEqual([1 + 0.5 * 2 + 0.25 * 4, 2 + 0.5 * 4, 4]);
  expect(returnsFrom({ ...trajectory, reward: 7 - 3 }, 1)).toEqual([4, 3, 1]);
  expect(returnsFrom({ ...trajectory, reward: 4 }, 0.5)[0]).toBe(3 - 0.25 * 3);
});

describe("equation 3", () => {
  test("averages all episodes through a state and an action", async () => {
    const same = [
      await episode(["map", "lamp"], [0, 1], { id: 0 }),
      await episode(["map", "soap"], [0, 0], { id: 1 }),
      await episode(["map", "lamp"], [0, 0.5], { id: 2 }),
    ];
    const values = actionValues(same, { discount: 1, prefixes: true });
    expect(values.map(({ turn, value, count, branched }) => [turn, value, count, branched])).toEqual([
      [0, 0.5, 3, false],
      [1, 0.75, 2, false],
      [1, 0, 1, false],
    ]);
  });

  test("counts a branch from its own action on, and before it with `prefixes`", async () => {
    const own = await episode(["map", "soap"], [0, 0], { id: 0 });
    const branch = await episode(["map", "lamp"], [0, 1], { id: 9, branch: { trajectory: 0, turn: 1 } });
    const faulty = await episode(["map", "lamp"], [0, 0], { id: 3, outcome: "service-fault" });
    const values = (prefixes: boolean) =>
      actionValues([own, branch, faulty], { discount: 1, prefixes }).map(
        ({ turn, value, count, branched }) => [turn, value, count, branched],
      );
    expect(values(true)).toEqual([
      [0, 0.5, 2, false],
      [1, 0, 1, false],
      [1, 1, 1, true],
    ]);
    expect(values(false)[0]).toEqual([0, 0, 1, false]);
  });

  test("an action that an episode of the policy takes too is not only a branch's, in any order", async () => {
    const own = await episode(["map", "lamp"], [0, 1], { id: 0 });
    const branch = await episode(["map", "lamp"], [0, 0.5], { id: 9, branch: { trajectory: 0, turn: 1 } });
    for (const played of [
      [own, branch],
      [branch, own],
    ]) {
      const values = actionValues(played, { discount: 1, prefixes: false });
      const { value, count, branched } = values.find(({ turn }) => turn === 1)!;
      expect([value, count, branched]).toEqual([0.75, 2, false]);
    }
  });

  test("a state's last ids are not taken for an action's first ones", () => {
    expect(keyOf([1, 2], [3])).not.toBe(keyOf([1], [2, 3]));
    expect(keyOf([1, 2], [3])).toBe(keyOf([1, 2], [3]));
  });
});

test("scaling is by the reward range or by what was observed", () => {
  const games = unitScale("range", { rewardRange: [-20, 0] }, [-20, -4]);
  expect([-20, -10, 0, 3].map(games)).toEqual([0, 0.5, 1, 1]);
  const observed = unitScale("observed", { rewardRange: [-20, 0] }, [-20, -4]);
  expect([-20, -12, -4].map(observed)).toEqual([0, 0.5, 1]);
  expect(unitScale("observed", {}, [3, 3])(3)).toBe(0.5);
  // The mean of three returns of 0.7 is not exactly 0.7.
  const rounded = (0.7 + 0.7 + 0.7) / 3;
  expect(rounded).not.toBe(0.7);
  const equal = unitScale("observed", {}, [rounded, 0.7]);
  expect([rounded, 0.7].map(equal)).toEqual([0.5, 0.5]);
});

describe("the reward model's data", () => {
  const points = (kind: Pick<LabelledAction, "label" | "branched">, count: number) =>
    Array.from({ length: count }, (_, turn) => ({ ...kind, turn }) as LabelledAction);
  const pool = [
    ...points({ label: 0.1, branched: false }, 40),
    ...points({ label: 0.2, branched: true }, 40),
    ...points({ label: 0.9, branched: false }, 30),
    ...points({ label: 0.8, branched: true }, 30),
  ];
  const counts = (data: readonly LabelledAction[]) =>
    [0.1, 0.2, 0.9, 0.8].map((label) => data.filter((point) => point.label === label).length);
  const options = { points: 40, branchShare: 0.4, balanced: true, seed: 1 };

  test("is half low, from the policy's episodes first, and a share α of the high is from branches", () => {
    expect(counts(rewardData(pool, options))).toEqual([20, 0, 12, 8]);
    expect(counts(rewardData(pool, { ...options, points: 100 }))).toEqual([40, 10, 30, 20]);
    // What one source lacks the other supplies.
    expect(counts(rewardData(pool, { ...options, branchShare: 1, points: 80 }))).toEqual([40, 0, 10, 30]);
    const none = rewardData(pool, { ...options, branchShare: 0, points: 60 });
    expect(counts(none)).toEqual([30, 0, 30, 0]);
  });

  test("the rarer half decides the size, an empty one is ignored, and unbalanced data keep their shares", () => {
    const fewHigh = pool
      .filter(({ label }) => label < 0.5)
      .concat(points({ label: 0.9, branched: false }, 3));
    expect(counts(rewardData(fewHigh, options))).toEqual([3, 0, 3, 0]);
    const allLow = pool.filter(({ label }) => label < 0.5);
    expect(counts(rewardData(allLow, options))).toEqual([40, 0, 0, 0]);
    expect(counts(rewardData(fewHigh, { ...options, balanced: false, points: 83 }))).toEqual([40, 40, 3, 0]);
  });

  test("data/truncated counts episodes that a limit cut short, and no faulty ones", async () => {
    const whole = await episode(["map", "lamp"], [0, 1], { id: 0 });
    const cut = await episode(["map", "soap"], [0, 0], { id: 1, outcome: "truncated" });
    const faulty = await episode(["map", "key"], [0, 0], { id: 2, outcome: "environment-fault" });
    for (const { turns } of [cut, faulty])
      Object.assign(turns.at(-1)!, { terminated: false, truncated: true });
    const data = iterationData(
      {
        model: { maxPositions: 2048 },
        environment: {},
        state: { iteration: 0 },
        config: hopeConfig.parse({}),
      },
      [whole, cut, faulty],
      [],
    );
    expect(data.truncated).toBe(1);
    expect(data.heldOut.length + data.tooLong).toBe(0);
  });

  test("is a function of the seed", () => {
    const order = (seed: number) => rewardData(pool, { ...options, seed }).map(({ turn }) => turn);
    expect(order(1)).toEqual(order(1));
    expect(order(1)).not.toEqual(order(2));
  });
});
