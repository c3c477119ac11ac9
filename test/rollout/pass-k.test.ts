import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { passHatK } from "../../lib/rollout/pass-k.ts";

/** Of all ways to choose k of the trials, the share that holds successes only: by listing them. */
function byEnumeration(outcomes: readonly boolean[], k: number): number {
  let all = 0;
  let good = 0;
  for (let subset = 0; subset < 1 << outcomes.length; subset++) {
    const chosen = outcomes.filter((_, i) => (subset >> i) & 1);
    if (chosen.length !== k) continue;
    all++;
    if (chosen.every(Boolean)) good++;
  }
  return good / all;
}

const counted = (outcomes: readonly boolean[]) => ({
  successes: outcomes.filter(Boolean).length,
  trials: outcomes.length,
});

describe("pass^k", () => {
  test("is what listing every choice of k trials gives", () => {
    fc.assert(
      fc.property(
        fc.array(fc.array(fc.boolean(), { minLength: 1, maxLength: 8 }), { minLength: 1, maxLength: 6 }),
        fc.integer({ min: 1, max: 8 }),
        (tasks, k) => {
          const long = tasks.filter((outcomes) => outcomes.length >= k);
          const expected = long.reduce((sum, outcomes) => sum + byEnumeration(outcomes, k), 0) / long.length;
          const { estimate } = passHatK(tasks.map(counted), k);
          if (long.length === 0) expect(estimate).toBeNaN();
          else expect(estimate).toBeCloseTo(expected, 12);
        },
      ),
      { numRuns: 50 },
    );
  });

  test("is unbiased: averaged over all outcomes of n trials it is the k-th power of the chance", () => {
    const [p, n, k] = [0.3, 6, 4];
    let expectation = 0;
    for (let bits = 0; bits < 1 << n; bits++) {
      const outcomes = Array.from({ length: n }, (_, i) => ((bits >> i) & 1) === 1);
      const { successes } = counted(outcomes);
      expectation += p ** successes * (1 - p) ** (n - successes) * passHatK([counted(outcomes)], k).estimate;
    }
    expect(expectation).toBeCloseTo(p ** k, 12);
  });

  test("many trials stay finite", () => {
    expect(passHatK([{ successes: 4000, trials: 5000 }], 2000).estimate).toBeGreaterThan(0);
    expect(passHatK([{ successes: 5000, trials: 5000 }], 5000).estimate).toBe(1);
    expect(passHatK([{ successes: 4999, trials: 5000 }], 5000).estimate).toBe(0);
  });

  test("its interval takes tasks for independent, and trials on one task not", () => {
    const three = [4, 1, 0].map((successes) => ({ successes, trials: 4 }));
    // Of the 27 draws of three tasks from three, one in 27 is all ones and one in 27 all zeros: more than a tail.
    const { low, high } = passHatK(three, 2);
    expect([low, high]).toEqual([0, 1]);
    // With every share the same nothing varies; with more tasks the interval narrows.
    expect(passHatK(Array(9).fill({ successes: 2, trials: 4 }), 1)).toEqual({
      estimate: 0.5,
      low: 0.5,
      high: 0.5,
    });
    const many = passHatK(
      Array.from({ length: 90 }, (_, i) => three[i % 3]!),
      2,
    );
    expect(many.estimate).toBeCloseTo(1 / 3, 12);
    // The normal approximation: shares of 1, 0, 0 vary by sqrt(2)/3, over sqrt(90) tasks.
    const half = (1.96 * Math.SQRT2) / 3 / Math.sqrt(90);
    expect(Math.abs(many.low - (1 / 3 - half))).toBeLessThan(0.012);
    expect(Math.abs(many.high - (1 / 3 + half))).toBeLessThan(0.012);
  });

  test("tasks that were tried too seldom are left out", () => {
    const tasks = [
      { successes: 2, trials: 2 },
      { successes: 0, trials: 1 },
      { successes: 0, trials: 0 },
    ];
    expect(passHatK(tasks, 1).estimate).toBe(0.5);
    expect(passHatK(tasks, 2).estimate).toBe(1);
    expect(passHatK(tasks, 3)).toEqual({ estimate: Number.NaN, low: Number.NaN, high: Number.NaN });
  });

  test.each([
    ["k of 0", [{ successes: 1, trials: 1 }], 0, /^k must be/],
    ["k of one and a half", [{ successes: 1, trials: 1 }], 1.5, /^k must be/],
    ["more successes than trials", [{ successes: 2, trials: 1 }], 1, /^tasks\[0\].successes/],
    ["half a trial", [{ successes: 0, trials: 0.5 }], 1, /^tasks\[0\].trials/],
  ])("refuses %s", (_, tasks, k, message) => {
    expect(() => passHatK(tasks, k)).toThrow(expect.objectContaining({ code: "ERR_VALUE" }));
    expect(() => passHatK(tasks, k)).toThrow(message);
  });
});
