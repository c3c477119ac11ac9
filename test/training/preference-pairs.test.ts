import { expect, test } from "vitest";
import type { Trajectory } from "../../lib/episodes/trajectory.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { actionPairs, episodePairs } from "../../lib/training/preference-pairs.ts";
import type { ActionValue } from "../../lib/training/returns.ts";
import { errandEnvironment } from "../support/errand.ts";
import { likeQwq } from "../support/reasoning-templates.ts";
import { act } from "../support/roles.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

/** Actions 1, 2, … in one state, with these mean returns. */
const actions = (...values: number[]) =>
  values.map(
    (value, i) =>
      ({
        ...{ state: { tokens: [9], prompt: () => [9] }, action: [i + 1], value },
        ...{ trajectory: { id: i }, turn: 0 },
      }) as unknown as ActionValue,
  );

const pairs = (minGap: number, ...values: number[]) =>
  actionPairs(actions(...values), { perGroup: 100, minGap, seed: 0 }).map(({ chosen, rejected }) => [
    chosen.response[0],
    rejected.response[0],
  ]);

test("returns that differ by rounding are equal", () => {
  const mean = (0.7 + 0.7 + 0.7) / 3;
  expect(mean).not.toBe(0.7);
  expect(pairs(0, mean, 0.7)).toEqual([]);
  expect(pairs(0, mean, 0.7, 0.2)).toHaveLength(2);
});

test("episodes that ended in a fault, and those of several sequences, are in no pair", async () => {
  const pairsOf = async (reply: string, change: Partial<Trajectory> = {}, template?: string) => {
    const [episode] = await collectTrajectories({
      model: new ScriptedModel(() => reply, template),
      ...{ environment: errandEnvironment(), episodes: [{ id: 0, task: { word: "key" } }] },
      ...{ seed: 0, maxActionTokens: 100, maxPromptTokens: 10_000, temperature: 1 },
    });
    const better = { ...episode!, id: 1, reward: 1, ...change };
    return episodePairs([episode!, better], { perGroup: 9, minGap: 0, seed: 0 });
  };
  expect(await pairsOf(act("soap"))).toMatchObject([{ gap: 1, trajectory: 1 }]);
  expect(await pairsOf(act("soap"), { outcome: "service-fault" })).toEqual([]);
  // The template drops the reasoning of earlier turns.
  expect(await pairsOf(`why\n</think>\n\n${act("soap")}`, {}, likeQwq)).toEqual([]);
});

test("a difference of minGap is enough", () => {
  expect(0.3 - 0.2).toBeLessThan(0.1);
  expect(pairs(0.1, 0.2, 0.3)).toEqual([[2, 1]]);
  expect(pairs(0.1, 0.2, 0.29)).toEqual([]);
});
