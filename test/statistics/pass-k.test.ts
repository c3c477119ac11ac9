import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { derivedSeed, uniform } from "../../lib/base/random.ts";
import { type Interval, shareInterval, wilsonInterval } from "../../lib/statistics/intervals.ts";
import { mean } from "../../lib/statistics/mean.ts";
import { passHatK } from "../../lib/statistics/pass-k.ts";
import { bootstrap } from "../../lib/statistics/resampling.ts";

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
  test("equals the count over all choices of k trials", () => {
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

  test("with one trial per task it has the interval of a share", () => {
    // Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I, method
    // 3.
    for (const [successes, tasks, low, high] of [
      [81, 263, 0.2553, 0.3662],
      [15, 148, 0.0624, 0.1605],
      [0, 20, 0, 0.1611],
      [1, 29, 0.0061, 0.1718],
    ] as const) {
      const tried = Array.from({ length: tasks }, (_, i) => ({
        successes: Number(i < successes),
        trials: 1,
      }));
      const interval = passHatK(tried, 1);
      expect(interval.low).toBeCloseTo(low, 4);
      expect(interval.high).toBeCloseTo(high, 4);
    }
  });

  test("if all tasks have the same result, the interval is that of one trial per task", () => {
    for (const trials of [1, 4, 64]) {
      for (let k = 1; k <= trials; k *= 2) {
        expect(passHatK(Array(10).fill({ successes: 0, trials }), k)).toEqual(wilsonInterval(0, 10));
        expect(passHatK(Array(10).fill({ successes: trials, trials }), k)).toEqual(wilsonInterval(1, 10));
      }
    }
    expect(passHatK([{ successes: 2, trials: 4 }], 1)).toEqual(wilsonInterval(0.5, 1));
    // More successes never mean less: with any the interval lies higher.
    const one = passHatK([{ successes: 2, trials: 4 }, ...Array(9).fill({ successes: 0, trials: 4 })], 2);
    expect(one.low).toBeGreaterThan(0);
    expect(one.high).toBeGreaterThan(one.estimate);
  });

  test("pass^1 has the interval of success, and more tasks narrow it", () => {
    const three = [4, 1, 0].map((successes) => ({ successes, trials: 4 }));
    // If tasks differ much, a task counts as one observation; if they hardly differ, each trial does.
    const alike = [3, 2, 2, 1].map((successes) => ({ successes, trials: 4 }));
    for (const tasks of [three, alike]) {
      const outcomes = tasks.map(({ successes }) => [0, 1, 2, 3].map((i) => Number(i < successes)));
      const [first, success] = [passHatK(tasks, 1), shareInterval(outcomes)];
      for (const key of ["estimate", "low", "high"] as const)
        expect(first[key]).toBeCloseTo(success[key], 12);
    }
    const many = passHatK(
      Array.from({ length: 90 }, (_, i) => three[i % 3]!),
      2,
    );
    expect(many.estimate).toBeCloseTo(1 / 3, 12);
    // The normal approximation: shares of 1, 0, 0 vary by sqrt(2)/3, over sqrt(90) tasks.
    const half = (1.96 * Math.SQRT2) / 3 / Math.sqrt(90);
    expect(Math.abs(many.low - (1 / 3 - half))).toBeLessThan(0.015);
    expect(Math.abs(many.high - (1 / 3 + half))).toBeLessThan(0.015);
  });

  test("its intervals cover the true value, also a small one with few tasks; a bootstrap would not", () => {
    // A fifth of the tasks is solved in 6 of 10 trials, the others in 1 of 20.
    const [k, trials, experiments] = [2, 4, 1000];
    const chance = (easy: boolean) => (easy ? 0.6 : 0.05);
    const truth = 0.2 * chance(true) ** k + 0.8 * chance(false) ** k;
    const covers = ({ low, high }: Interval) => Number(low <= truth && truth <= high);
    let [covered, naive] = [0, 0];
    for (let i = 0; i < experiments; i++) {
      const seed = derivedSeed(13, 1, i);
      const tasks = Array.from({ length: 10 }, (_, task) => {
        const p = chance(uniform(seed, 2, task) < 0.2);
        const outcomes = Array.from({ length: trials }, (_, j) => uniform(seed, 3, task * trials + j) < p);
        return counted(outcomes);
      });
      covered += covers(passHatK(tasks, k));
      const shares = tasks.map((task) => passHatK([task], k).estimate);
      naive += covers(bootstrap([shares], ([drawn]) => [mean(drawn!)], { draws: 200 })[0]!);
    }
    expect(naive / experiments).toBeLessThan(0.8);
    expect(covered / experiments).toBeGreaterThan(0.93);
  });

  test("tasks with too few trials are left out", () => {
    const tasks = [
      { successes: 2, trials: 2 },
      { successes: 0, trials: 1 },
      { successes: 0, trials: 0 },
    ];
    expect(passHatK(tasks, 1).estimate).toBe(0.5);
    expect(passHatK(tasks, 2).estimate).toBe(1);
    expect(passHatK(tasks, 3)).toEqual({ estimate: Number.NaN, low: 0, high: 1 });
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
