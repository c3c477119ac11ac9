import fc from "fast-check";
import { expect, test } from "vitest";
import { areaUnderCurve, brier } from "../../lib/statistics/forecasts.ts";

test("the Brier score is the mean squared error", () => {
  const forecasts = [
    { forecast: 0.9, ended: 1 },
    { forecast: 0.4, ended: 0 },
    { forecast: 0.5, ended: 0.25 },
  ];
  expect(brier(forecasts)).toBeCloseTo((0.01 + 0.16 + 0.0625) / 3, 12);
  expect(brier([])).toBeNaN();
});

test("the area under the curve is the share of ranked pairs, ties counting half", () => {
  expect(areaUnderCurve([0.9, 0.8], [0.1, 0.2])).toBe(1);
  expect(areaUnderCurve([0.1], [0.3, 0.2])).toBe(0);
  expect(areaUnderCurve([0.5], [0.5])).toBe(0.5);
  expect(areaUnderCurve([], [0.5])).toBeNaN();
  expect(areaUnderCurve([0.5], [])).toBeNaN();
  expect(areaUnderCurve([0.5, Number.NaN], [0.5])).toBeNaN();
  const scores = fc.array(fc.integer({ min: 0, max: 6 }), { minLength: 1, maxLength: 20 });
  fc.assert(
    fc.property(scores, scores, (positives, negatives) => {
      let won = 0;
      for (const p of positives) for (const n of negatives) won += p > n ? 1 : p === n ? 0.5 : 0;
      expect(areaUnderCurve(positives, negatives)).toBeCloseTo(
        won / (positives.length * negatives.length),
        12,
      );
    }),
  );
});
