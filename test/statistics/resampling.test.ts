import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { uniform } from "../../lib/base/random.ts";
import { interquartileMean, median, probabilityOfImprovement } from "../../lib/statistics/few-runs.ts";
import { mean } from "../../lib/statistics/mean.ts";
import { bootstrap, permutationTest } from "../../lib/statistics/resampling.ts";

interface Recorded {
  cases: {
    /** [runs][tasks] of each method. */
    scores: Record<"a" | "b", number[][]>;
    /** Interquartile mean, mean, median. */
    estimates: Record<"a" | "b", [number, number, number]>;
    /** Lower ends, upper ends. */
    intervals: Record<"a" | "b", [number[], number[]]>;
    improvement: { estimate: number; interval: [number, number] };
  }[];
}

// Made by scripts/fixtures/comparison.py.
const file = new URL("../fixtures/compare/rliable.json", import.meta.url);
const { cases } = JSON.parse(readFileSync(file, "utf8")) as Recorded;

/** [runs][tasks] → [tasks][runs]. */
const byTask = (scores: number[][]) => scores[0]!.map((_, task) => scores.map((run) => run[task]!));

const overTasks = (strata: readonly (readonly number[])[]) => [
  interquartileMean(strata.flat()),
  mean(strata.map(mean)),
  median(strata.map(mean)),
];

describe.each(cases)("equal to rliable, case %#", ({ scores, estimates, intervals, improvement }) => {
  test.each(["a", "b"] as const)("aggregates and intervals of %s", (name) => {
    const ours = bootstrap(byTask(scores[name]), overTasks, { draws: 20_000 });
    for (const [i, { estimate, low, high }] of ours.entries()) {
      expect(estimate).toBeCloseTo(estimates[name][i]!, 12);
      // Both drew at random, and where there are few runs the ends lie on a grid of up to 1/64: one
      // step of it apart.
      expect(Math.abs(low - intervals[name][0][i]!)).toBeLessThan(0.016);
      expect(Math.abs(high - intervals[name][1][i]!)).toBeLessThan(0.016);
    }
  });

  test("probability of improvement", () => {
    const [a, b] = [byTask(scores.a), byTask(scores.b)];
    const over = (strata: readonly (readonly number[])[]) => [
      mean(a.map((_, task) => probabilityOfImprovement(strata[task]!, strata[a.length + task]!))),
    ];
    const [ours] = bootstrap([...a, ...b], over, { draws: 20_000 });
    expect(ours!.estimate).toBeCloseTo(improvement.estimate, 12);
    expect(Math.abs(ours!.low - improvement.interval[0])).toBeLessThan(0.03);
    expect(Math.abs(ours!.high - improvement.interval[1])).toBeLessThan(0.03);
  });
});

test("the interquartile mean of few values", () => {
  expect(interquartileMean([3])).toBe(3);
  expect(interquartileMean([1, 2, 9])).toBe(4);
  expect(interquartileMean([100, 1, 2, 4, -100])).toBeCloseTo(7 / 3, 12);
  expect(interquartileMean([])).toBeNaN();
});

test("the bootstrap of three values has the quantiles of its 27 draws", () => {
  const values = [0, 1, 10];
  const draws = values.flatMap((a) => values.flatMap((b) => values.map((c) => (a + b + c) / 3)));
  draws.sort((a, b) => a - b);
  const [interval] = bootstrap([values], ([sample]) => [mean(sample!)], { draws: 20_000 });
  // A 27th of the draws is 0 and a 27th is 10: more than a tail of 1/40, so that these are the
  // ends.
  expect([interval!.low, interval!.high]).toEqual([draws[0], draws[26]]);
});

test("draws keep to their strata, and are the same for the same seed", () => {
  const strata = [
    [1, 2],
    [30, 40, 50],
  ];
  const seen: (readonly (readonly number[])[])[] = [];
  const run = (seed: number) =>
    bootstrap(
      strata,
      (sample) => {
        seen.push(sample);
        return [mean(sample.flat())];
      },
      { seed, draws: 200 },
    );
  expect(run(1)).toEqual(run(1));
  expect(run(1)).not.toEqual(run(2));
  for (const [a, b] of seen) {
    expect([a!.length, b!.length]).toEqual([2, 3]);
    expect(Math.max(...a!)).toBeLessThanOrEqual(2);
    expect(Math.min(...b!)).toBeGreaterThanOrEqual(30);
  }
});

test("a missing value is not dropped from the interquartile mean as the lowest or highest", () => {
  expect(interquartileMean([0.1, 0.5, 0.6, 0.7, 1])).toBeCloseTo(0.6, 12);
  for (const at of [0, 2, 4]) {
    const values = [0.1, 0.5, 0.6, 0.7, 1];
    values[at] = Number.NaN;
    expect(interquartileMean(values)).toBeNaN();
  }
});

test("without values the estimate is NaN", () => {
  expect(bootstrap<number>([[]], ([sample]) => [interquartileMean(sample!)])).toEqual([
    { estimate: Number.NaN, low: Number.NaN, high: Number.NaN },
  ]);
  expect(probabilityOfImprovement([1], [])).toBeNaN();
  expect(median([])).toBeNaN();
});

interface RecordedTest {
  a: number[];
  b: number[];
  paired: boolean;
  difference: number;
  p: number;
  permutations: number;
}

// Made by scripts/fixtures/permutation.py.
const tests = JSON.parse(
  readFileSync(new URL("../fixtures/compare/permutation.json", import.meta.url), "utf8"),
) as RecordedTest[];

describe("a permutation test", () => {
  test.each(tests)("is exact as scipy's, case %#", ({ a, b, paired, difference, p, permutations }) => {
    const ours = permutationTest(a, b, { paired });
    expect(ours).toMatchObject({ exact: true, permutations, standardError: 0 });
    expect(ours.difference).toBeCloseTo(difference, 12);
    expect(ours.p).toBeCloseTo(p, 12);
  });

  test("samples permutations if there are too many, and gives the standard error", () => {
    const most = 5000;
    const far: number[] = [];
    for (const { a, b, paired, p, permutations } of tests) {
      if (permutations < 100) continue;
      const drawn = permutationTest(a, b, {
        paired,
        maxPermutations: Math.min(most, permutations - 1),
        seed: 3,
      });
      expect(drawn.exact).toBe(false);
      expect(drawn.p).toBeGreaterThan(0);
      // Twice the smaller tail cannot exceed 1, so that the error of a p near 1 has one side alone.
      if (p < 0.9) far.push((drawn.p - p) / (drawn.standardError + 2 / drawn.permutations));
    }
    expect(far.length).toBeGreaterThan(10);
    for (const errors of far) expect(Math.abs(errors)).toBeLessThan(3.5);
    const many = Array.from({ length: 30 }, (_, i) => uniform(9, 1000, i));
    const shifted = many.map((value) => value + 0.05);
    expect(permutationTest(many, shifted, { seed: 1 })).toEqual(permutationTest(many, shifted, { seed: 1 }));
    expect(permutationTest(many, shifted)).toMatchObject({ exact: false, permutations: 200_000 });
    // All differences have one sign. No drawn permutation is as extreme; the observed one is added.
    expect(permutationTest(many, shifted, { paired: true }).p).toBeCloseTo(2 / 200_001, 12);
    expect(permutationTest(many, shifted).p).toBeGreaterThan(0.3);
  });

  test("has uniform p values under the null hypothesis", () => {
    const below = (paired: boolean) => {
      let count = 0;
      for (let i = 0; i < 400; i++) {
        const values = Array.from({ length: 10 }, (_, j) => uniform(17, 1001, 10 * i + j));
        count += permutationTest(values.slice(0, 5), values.slice(5), { paired }).p <= 0.25 ? 1 : 0;
      }
      return count / 400;
    };
    // A quarter, within three standard errors.
    expect(Math.abs(below(false) - 0.25)).toBeLessThan(0.066);
    expect(Math.abs(below(true) - 0.25)).toBeLessThan(0.066);
  });

  test("needs values in both samples, and pairs of equal length", () => {
    expect(() => permutationTest([], [1])).toThrow(RangeError);
    expect(() => permutationTest([1, 2], [1], { paired: true })).toThrow(RangeError);
    expect(permutationTest([1, 1], [1, 1]).p).toBe(1);
  });
});
