import { describe, expect, test } from "vitest";
import { rolloutMetrics } from "../../lib/episodes/figures.ts";
import {
  reaches,
  succeeded,
  type Trajectory,
  type Turn,
  transitionsOf,
} from "../../lib/episodes/trajectory.ts";

const turn = (reward: number, end: Partial<Turn> = {}): Turn =>
  ({
    action: { text: `worth ${reward}` },
    tokens: [1],
    observation: [{ role: "user", content: String(reward) }],
    reward,
    terminated: false,
    truncated: false,
    ...end,
  }) as Turn;

const episode = (outcome: Trajectory["outcome"], ...turns: Turn[]) =>
  ({ id: 7, turns, outcome, reward: 9 }) as unknown as Trajectory;

describe("the rest of an episode", () => {
  test("has the later turns of each turn, and the total reward if the episode terminated", () => {
    const turns = [turn(1), turn(2, { action: undefined as never }), turn(4, { terminated: true })];
    const rests = transitionsOf(episode("done", ...turns)).map(({ rest }) => rest);
    expect(rests.map(({ turns }) => turns.map(({ reward }) => reward))).toEqual([[2, 4], [4], []]);
    expect(rests.map(({ score }) => score)).toEqual([7, 7, 7]);
    expect(rests[0]!.turns.map(({ action }) => action?.text)).toEqual([undefined, "worth 4"]);
    expect(rests[1]!.turns[0]!.observation).toEqual(turns[2]!.observation);
  });

  test.each([
    ["turn-limit", [turn(1), turn(2, { truncated: true })], [[2], []]],
    // The last turn of a faulty episode has no known answer.
    ["environment-fault", [turn(1), turn(2), turn(0, { truncated: true })], [[2], []]],
  ] as const)("has no score after %s", (outcome, turns, later) => {
    const rests = transitionsOf(episode(outcome, ...turns)).map(({ rest }) => rest);
    expect(rests.map(({ turns }) => turns.map(({ reward }) => reward))).toEqual(later);
    for (const { score } of rests) expect(score).toBeUndefined();
  });
});

describe("success", () => {
  test("is a total reward of 1, also as a sum that rounding leaves below 1", () => {
    const turns = Array.from({ length: 10 }, () => ({ info: {}, reward: 0.1 }));
    const reward = turns.reduce((sum, turn) => sum + turn.reward, 0);
    expect(reward).toBeLessThan(1);
    expect(succeeded({ turns, reward })).toBe(true);
    expect(succeeded({ turns, reward: 0.999 })).toBe(false);
    expect(reaches({ reward: 0.1 + 0.7 }, 0.8)).toBe(true);
  });

  test("is what the last step says, whatever the reward", () => {
    const turns = [{ info: { success: true } }, { info: { success: false } }];
    expect(succeeded({ turns, reward: 1 })).toBe(false);
    expect(succeeded({ turns: turns.slice(0, 1), reward: 0 })).toBe(true);
  });
});

test("the metrics of a rollout leave out episodes with a fault, but for their tokens", () => {
  const played = { ...episode("done", turn(0), turn(1, { info: {} })), reward: 1 };
  const lost = {
    ...episode("environment-fault", turn(0, { action: undefined as never })),
    reward: 0,
    fault: "?",
  };
  expect(rolloutMetrics([played, lost, played] as Trajectory[])).toEqual({
    "rollout/success": 1,
    "rollout/reward": 1,
    "rollout/turns": 2,
    "rollout/action_tokens": 1,
    "rollout/tokens": 5,
    "rollout/faults": 1,
    "parse/action": 1,
  });
});
