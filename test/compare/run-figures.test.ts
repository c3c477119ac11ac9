import { join } from "node:path";
import { expect, test } from "vitest";
import { readBuild, readFigures, smoothed, valueAt } from "../../lib/compare/run-figures.ts";
import { note } from "../../lib/run/description.ts";
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
        { steps: 0, generatedTokens: 0, gradientTokens: 0, value: 0.125 },
        { steps: 90, generatedTokens: 450 + 40, gradientTokens: 13, value: 0.5 },
        { steps: 210, generatedTokens: 1050 + 40, gradientTokens: 22, value: 0.625 },
      ],
      collected: [
        { steps: 90, generatedTokens: 450, gradientTokens: 0, value: 0.25 },
        { steps: 210, generatedTokens: 1050 + 40, gradientTokens: 13, value: 0.75 },
      ],
      environmentSteps: 210,
      updates: 2,
      gradientTokens: 22,
      generatedTokens: 40 + 5 * 210,
    });
    expect(readFigures(path, 330)).toMatchObject({ environmentSteps: 330, updates: 3, gradientTokens: 35 });
    expect(readFigures(join(directory, "absent"), 200)).toMatchObject({ evaluated: [], environmentSteps: 0 });
  }));

test("an iteration that collects twice is evaluated after the budget, and success interpolated", () =>
  inDirectory((directory) => {
    const path = join(directory, "run");
    writeRun(path, [
      { step: 0, values: { "eval/success": 0.5 } },
      collected(0, 210, 0.5),
      // The branches of HOPE: steps without episodes of the policy.
      { step: 0, values: { environment_steps: 400, "tokens/generated": 700 } },
      { step: 8, values: { "tokens/gradient": 30 } },
      { step: 8, values: { "eval/success": 0.9 } },
      collected(8, 610, 0.9),
      { step: 16, values: { "eval/success": 1 } },
    ]);
    const figures = readFigures(path, 200, true);
    expect(figures.evaluated.map(({ steps, value }) => [steps, value])).toEqual([
      [0, 0.5],
      [400, 0.9],
    ]);
    expect(valueAt(figures.evaluated, 200, true)).toBeCloseTo(0.7, 12);
    // The costs are those of the first part.
    expect(figures).toMatchObject({ environmentSteps: 210, updates: 0, generatedTokens: 5 * 210 });
    expect(figures.gradientTokens).toBe(0);
    expect(figures.collected).toHaveLength(1);
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
  // Measured again after more training, but no more steps: costs count that training too.
  const repeated = [0.2, 0.5, 0.6].map((value, i) => ({ steps: [100, 400, 400][i]!, value }));
  for (const over of [true, false]) expect(valueAt(repeated, 400, over)).toBe(0.6);
  expect(valueAt(repeated, 250, false)).toBeCloseTo(0.35, 12); // on the way to the first of them
});

test("smoothing looks back over a window of steps, never ahead", () => {
  const points = [100, 200, 300, 400].map((steps, i) => ({
    ...{ steps, generatedTokens: 8 * steps, gradientTokens: 2 * steps },
    value: [0, 1, 1, 0][i]!,
  }));
  expect(smoothed(points, 200).map(({ value }) => value)).toEqual([0, 0.5, 1, 0.5]);
  expect(smoothed(points, 1)).toEqual(points);
});

test("smoothing takes equal steps together, and hundreds of thousands of points", () => {
  const at = (steps: number, value: number) => ({ steps, generatedTokens: 0, gradientTokens: 0, value });
  const points = [at(1, 0.5), at(4, 0.25), at(4, 0.75), at(5, 1), at(9, 0.1)];
  expect(smoothed(points, 4).map(({ value }) => value)).toEqual([0.5, 0.5, 0.5, 2 / 3, 0.1]);
  const many = Array.from({ length: 300_000 }, (_, i) => at(i, i % 2));
  expect(smoothed(many, 1000).at(-1)!.value).toBeCloseTo(0.5, 9);
});

test("a run's own totals count before what older versions left to be added up", () =>
  inDirectory((directory) => {
    const path = join(directory, "run");
    const played = { ...collected(0, 100, 0.5).values, "rollout/tokens": 507 };
    const learned = { "tokens/l1": 10, "tokens/l2": 3, "tokens/gradient": 17, "tokens/generated": 40 };
    writeRun(path, [
      { step: 0, values: played },
      { step: 1, values: learned },
    ]);
    expect(readFigures(path, 100)).toMatchObject({ generatedTokens: 547, gradientTokens: 17 });
  }));

test("values between measurements by tokens", () => {
  const points = [
    { steps: 100, generatedTokens: 1000, gradientTokens: 10, value: 0.2 },
    { steps: 200, generatedTokens: 3000, gradientTokens: 10, value: 0.4 },
    { steps: 300, generatedTokens: 4000, gradientTokens: 20, value: 0.8 },
  ];
  expect(valueAt(points, 2000, false, "generatedTokens")).toBeCloseTo(0.3, 12);
  expect(valueAt(points, 15, false, "gradientTokens")).toBeCloseTo(0.6, 12);
  expect(valueAt(points, 4001, false, "generatedTokens")).toBeNaN();
});

test("a run says by which builds it was trained", () =>
  inDirectory((directory) => {
    const path = join(directory, "run");
    writeRun(path, []);
    expect(readBuild(path)).toBeNull();
    expect(readBuild(join(directory, "absent"))).toBeNull();
    const build = { version: "0.1.0", commit: "abc1234", core: "0123456789ab" };
    note(path, "builds", build);
    note(path, "builds", build); // continuing with the same build adds nothing
    expect(readBuild(path)).toBe("an unknown build, then nlac 0.1.0 at abc1234, core 0123456789ab");
    const other = join(directory, "other");
    writeRun(other, [], {}, [build]);
    expect(readBuild(other)).toBe("nlac 0.1.0 at abc1234, core 0123456789ab");
    note(other, "builds", { version: "0.1.0", commit: null, core: null });
    expect(readBuild(other)).toBe("nlac 0.1.0 at abc1234, core 0123456789ab, then nlac 0.1.0");
  }));
