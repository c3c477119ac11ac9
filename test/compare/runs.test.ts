import { join } from "node:path";
import { expect, test } from "vitest";
import { readFigures, smoothed, valueAt } from "../../lib/compare/runs.ts";
import { writeRun } from "../support/comparison.ts";
import { inDirectory } from "../support/tiny.ts";

const collected = (step: number, steps: number, success: number) => ({
  step,
  values: { "rollout/success": success, "rollout/action_tokens": 5, environment_steps: steps },
});

test("a run is read up to the end of the iteration that reached the budget", () =>
  inDirectory((directory) => {
    const path = join(directory, "run");
    const learned = { "tokens/l1": 10, "tokens/l2": 3, "tokens/critique": 99, "tokens/generated": 40 };
    writeRun(path, [
      { step: 0, values: { "eval/success": 0.125 } },
      collected(0, 90, 0.25),
      { step: 1, values: learned },
      { step: 1, values: { "eval/success": 0.5 } },
      collected(1, 210, 0.75),
      { step: 2, values: { "tokens/nll": 4, "tokens/policy": 5 } },
      { step: 2, values: { "eval/success": 0.625, environment_steps: 210 } },
      // Beyond a budget of 200.
      collected(2, 330, 1),
      { step: 3, values: learned },
    ]);
    expect(readFigures(path, 200)).toEqual({
      evaluated: [
        { steps: 0, value: 0.125 },
        { steps: 90, value: 0.5 },
        { steps: 210, value: 0.625 },
      ],
      collected: [
        { steps: 90, value: 0.25 },
        { steps: 210, value: 0.75 },
      ],
      environmentSteps: 210,
      updates: 2,
      gradientTokens: 22,
      generatedTokens: 40 + 5 * 210,
    });
    expect(readFigures(path, 330)).toMatchObject({ environmentSteps: 330, updates: 3, gradientTokens: 35 });
    expect(readFigures(join(directory, "absent"), 200)).toMatchObject({ evaluated: [], environmentSteps: 0 });
  }));

test("values between measurements, before the first and after the last", () => {
  const points = [
    { steps: 100, value: 0.2 },
    { steps: 200, value: 0.4 },
    { steps: 400, value: 0.8 },
  ];
  expect(valueAt(points, 100, false)).toBe(0.2);
  expect(valueAt(points, 250, false)).toBeCloseTo(0.5, 12);
  expect(valueAt(points, 99, true)).toBeNaN();
  expect(valueAt(points, 401, false)).toBeNaN();
  expect(valueAt(points, 401, true)).toBe(0.8);
  expect(valueAt([], 100, true)).toBeNaN();
});

test("smoothing looks back over a window of steps, never ahead", () => {
  const points = [100, 200, 300, 400].map((steps, i) => ({ steps, value: [0, 1, 1, 0][i]! }));
  expect(smoothed(points, 200).map(({ value }) => value)).toEqual([0, 0.5, 1, 0.5]);
  expect(smoothed(points, 1)).toEqual(points);
});
