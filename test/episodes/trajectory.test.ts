import { describe, expect, test } from "vitest";
import { type Trajectory, type Turn, transitionsOf } from "../../lib/episodes/trajectory.ts";

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
