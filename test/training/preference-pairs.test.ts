import { expect, test } from "vitest";
import { actionPairs } from "../../lib/training/preference-pairs.ts";
import type { ActionValue } from "../../lib/training/returns.ts";

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

test("a difference of minGap is enough", () => {
  expect(0.3 - 0.2).toBeLessThan(0.1);
  expect(pairs(0.1, 0.2, 0.3)).toEqual([[2, 1]]);
  expect(pairs(0.1, 0.2, 0.29)).toEqual([]);
});
