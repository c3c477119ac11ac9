import { expect, test } from "vitest";
import { shareOver } from "../../lib/run/training-run.ts";
import { scheduleConfig, scheduled } from "../../lib/training/schedule.ts";

const rates = (config: Parameters<typeof scheduleConfig.parse>[0], steps: number, total = steps) =>
  Array.from({ length: steps }, (_, step) =>
    scheduled(scheduleConfig.parse(config), step, Math.min(1, step / total)),
  );

test("the default is a constant rate", () => {
  expect(rates({}, 4)).toEqual([1, 1, 1, 1]);
});

test("a warm-up rises linearly and its first step is not 0", () => {
  expect(rates({ warmupSteps: 4 }, 6)).toEqual([0.25, 0.5, 0.75, 1, 1, 1]);
});

test("linear decay reaches the floor, and the warm-up multiplies it", () => {
  expect(rates({ shape: "linear", warmupSteps: 2 }, 4)).toEqual([0.5, 0.75, 0.5, 0.25]);
  const floored = rates({ shape: "linear", floor: 0.2 }, 12, 10);
  expect(floored[0]).toBe(1);
  expect(floored[5]).toBeCloseTo(0.6, 12);
  expect(floored.slice(10)).toEqual([0.2, 0.2]); // after the end it stays there
});

test("cosine decay is at half in the middle, and slow at both ends", () => {
  const cosine = rates({ shape: "cosine", floor: 0.1 }, 101, 100);
  expect(cosine[0]).toBe(1);
  expect(cosine[50]).toBeCloseTo(0.55, 12);
  expect(cosine[100]).toBeCloseTo(0.1, 12);
  expect(cosine[0]! - cosine[1]!).toBeLessThan(0.001);
  expect(cosine[49]! - cosine[50]!).toBeGreaterThan(0.013);
});

test("with a limit of environment steps, decay follows them", () => {
  const length = { iterations: 100, environmentSteps: 400 };
  const at = (iteration: number, stepsBefore: number, environmentSteps: number, ofIteration: number) =>
    shareOver({ iteration, stepsBefore, environmentSteps }, length, ofIteration);
  expect(at(0, 0, 100, 0)).toBe(0);
  expect(at(0, 0, 100, 0.5)).toBe(0.125);
  expect(at(1, 100, 100, 0)).toBe(0.25); // between two iterations
  // The last iteration begins where the one before ended, although its steps exceed the limit.
  expect(at(2, 200, 300, 1)).toBe(0.75);
  expect(at(3, 300, 500, 0)).toBe(0.75);
  expect(at(3, 300, 500, 1)).toBe(1);
  expect(at(50, 80, 100, 0.5)).toBe(0.505);
});

test.each([{ shape: "step" }, { floor: 2 }, { warmupSteps: -1 }, { warmup: 3 }])(
  "%j is rejected",
  (config) => {
    expect(() => scheduleConfig.parse(config)).toThrow();
  },
);
