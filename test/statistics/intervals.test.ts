import { describe, expect, test } from "vitest";
import { derivedSeed, uniform } from "../../lib/base/random.ts";
import {
  grouped,
  meanInterval,
  shareInterval,
  studentQuantile,
  wilsonInterval,
} from "../../lib/statistics/intervals.ts";

const single = (values: readonly number[]) => values.map((value) => [value]);
const ones = (count: number, of: number) => Array.from({ length: of }, (_, i) => (i < count ? 1 : 0));

describe("intervals over groups", () => {
  test("groups have equal keys, in order", () => {
    expect(grouped([1, 2, 3, 4], ["a", "b", "a", "c"])).toEqual([[1, 3], [2], [4]]);
  });

  test("one value per group: Wilson's interval, and Student's standard error", () => {
    for (const [count, of] of [
      [0, 7],
      [3, 7],
      [7, 7],
      [1, 1],
    ] as const) {
      const { estimate, low, high } = shareInterval(single(ones(count, of)));
      const wilson = wilsonInterval(count / of, of);
      expect(estimate).toBe(count / of);
      expect(low).toBeCloseTo(wilson.low, 12);
      expect(high).toBeCloseTo(wilson.high, 12);
    }
    // 2, 4, 4, 4, 5, 5, 7, 9: mean 5, squares 32, so the variance of the mean is 32 / 7 / 8.
    const { estimate, low, high } = meanInterval(single([2, 4, 4, 4, 5, 5, 7, 9]));
    expect(estimate).toBe(5);
    expect(high - low).toBeCloseTo(2 * 2.364624252 * Math.sqrt(32 / 56), 8); // t of 7 degrees
  });

  test("the quantile of Student's t", () => {
    expect(studentQuantile(1)).toBeCloseTo(Math.tan(0.475 * Math.PI), 8);
    expect(studentQuantile(2)).toBeCloseTo(0.95 * Math.sqrt(2 / (1 - 0.95 ** 2)), 8);
    // From printed tables.
    for (const [degrees, quantile] of [
      [3, 3.1824],
      [4, 2.7764],
      [7, 2.3646],
      [30, 2.0423],
      [120, 1.9799],
    ] as const)
      expect(studentQuantile(degrees)).toBeCloseTo(quantile, 4);
    expect(studentQuantile(1e5)).toBeCloseTo(1.959964, 4);
    expect(studentQuantile(0)).toBeNaN();
  });

  test("the interval of a mean covers the truth in 95 % of cases also for few groups", () => {
    const experiments = 2000;
    for (const count of [2, 3, 5, 8]) {
      let covered = 0;
      for (let i = 0; i < experiments; i++) {
        const seed = derivedSeed(5, count, i);
        // Sums of twelve uniform numbers: nearly normal, mean 0, one per group and one per value.
        const normal = (stream: number, at: number) =>
          Array.from({ length: 12 }, (_, k) => uniform(seed, stream, 12 * at + k)).reduce(
            (a, b) => a + b,
            -6,
          );
        const groups = Array.from({ length: count }, (_, g) => {
          const own = normal(1, g);
          return Array.from({ length: 4 }, (_, j) => own + normal(2, 4 * g + j));
        });
        const { low, high } = meanInterval(groups);
        covered += low <= 0 && 0 <= high ? 1 : 0;
      }
      expect(covered / experiments).toBeGreaterThan(0.935);
      expect(covered / experiments).toBeLessThan(0.965);
    }
  });

  test("identical repeats add no information", () => {
    const repeated = ones(3, 10).map((value) => [value, value, value, value]);
    const { low, high } = shareInterval(repeated);
    const wilson = wilsonInterval(0.3, 10);
    expect(low).toBeCloseTo(wilson.low, 12);
    expect(high).toBeCloseTo(wilson.high, 12);
    expect(shareInterval([ones(0, 8), ones(0, 8)])).toEqual(wilsonInterval(0, 2));
    expect(shareInterval([ones(4, 8)])).toEqual(wilsonInterval(0.5, 1));
    // Equal shares, also if they are rounded.
    for (const size of [2, 3, 7]) {
      const { low, high } = shareInterval([ones(1, size), ones(1, size), ones(1, size)]);
      const wilson = wilsonInterval(1 / size, 3);
      expect([low, high]).toEqual([expect.closeTo(wilson.low, 12), expect.closeTo(wilson.high, 12)]);
    }
  });

  test("groups that differ less than by chance count for no more trials than they have", () => {
    // Shares of 1/2, 1/2, 1/2 and 1 would have the variance of 15 independent trials; there are 8.
    const { estimate, low, high } = shareInterval([ones(1, 2), ones(1, 2), ones(1, 2), ones(2, 2)]);
    expect(estimate).toBe(5 / 8);
    // Wilson's bounds b, by definition: the test of b against 5/8 of 8 trials is at its limit.
    for (const bound of [low, high])
      expect(Math.abs(5 / 8 - bound) / Math.sqrt((bound * (1 - bound)) / 8)).toBeCloseTo(1.959964, 8);
  });

  test("groups of one size: the interval of their means", () => {
    const groups = [
      [1, 4, 1],
      [5, 9, 2],
      [6, 5, 3],
    ];
    const ofMeans = meanInterval(single([2, 16 / 3, 14 / 3]));
    const { estimate, low, high } = meanInterval(groups);
    expect(estimate).toBeCloseTo(ofMeans.estimate, 12);
    expect(low).toBeCloseTo(ofMeans.low, 12);
    expect(high).toBeCloseTo(ofMeans.high, 12);
  });

  test("nothing and a single group have no interval of a mean", () => {
    expect(meanInterval([])).toEqual({ estimate: Number.NaN, low: Number.NaN, high: Number.NaN });
    expect(meanInterval([[1, 2]])).toEqual({ estimate: 1.5, low: Number.NaN, high: Number.NaN });
    expect(shareInterval([])).toEqual({ estimate: Number.NaN, low: 0, high: 1 });
  });

  test("95 % of the intervals cover the truth for correlated trials; intervals per trial do not", () => {
    // Half of the tasks are solved in 9 of 10 trials, half in 1 of 10: the truth is 0.5.
    const covers = ({ low, high }: { low: number; high: number }) => (low <= 0.5 && 0.5 <= high ? 1 : 0);
    const experiments = 1000;
    let [share, mean, naive] = [0, 0, 0];
    for (let i = 0; i < experiments; i++) {
      const seed = derivedSeed(11, 1, i);
      const groups = Array.from({ length: 40 }, (_, task) => {
        const p = uniform(seed, 2, task) < 0.5 ? 0.9 : 0.1;
        // Some trials are lost to faults, so groups differ in size.
        const trials = 4 + Math.floor(uniform(seed, 3, task) * 5);
        return Array.from({ length: trials }, (_, j) => (uniform(seed, 4, task * 10 + j) < p ? 1 : 0));
      });
      share += covers(shareInterval(groups));
      mean += covers(meanInterval(groups));
      naive += covers(shareInterval(single(groups.flat())));
    }
    expect(share / experiments).toBeGreaterThan(0.93);
    expect(share / experiments).toBeLessThan(0.97);
    expect(mean / experiments).toBeGreaterThan(0.92);
    expect(mean / experiments).toBeLessThan(0.97);
    expect(naive / experiments).toBeLessThan(0.75);
  });
});
