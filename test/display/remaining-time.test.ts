import { expect, test } from "vitest";
import { RemainingTime } from "../../lib/display/remaining-time.ts";

test("between two steps the time left counts down", () => {
  const remaining = new RemainingTime();
  remaining.overall(0, 100);
  expect(remaining.left(105)).toBeUndefined();
  remaining.overall(0.1, 110); // ten steps of 10 s
  for (const [now, left] of [
    [110, 90],
    [115, 85],
    [120, 80],
  ] as const)
    expect(remaining.left(now)).toBeCloseTo(left, 9);
  remaining.overall(0.2, 120);
  expect(remaining.left(120)).toBeCloseTo(80, 9);
});

test("a step that takes longer than those before makes the estimate longer", () => {
  const remaining = new RemainingTime();
  remaining.overall(0.5, 0); // resumed
  remaining.overall(0.6, 10);
  expect(remaining.left(20)).toBeCloseTo(30, 9);
  // As if two steps took these 40 s: three more take 60.
  expect(remaining.left(40)).toBeCloseTo(60, 9);
  remaining.overall(0.7, 40);
  expect(remaining.left(40)).toBeCloseTo(60, 9);
});

test("the last step is never shown as done before it is", () => {
  const remaining = new RemainingTime();
  remaining.overall(0, 0);
  remaining.overall(0.5, 10);
  expect(remaining.left(500)).toBe(1);
  remaining.overall(1, 501);
  expect(remaining.left(502)).toBe(0);
});

test("a share that falls, as when more is left than was expected, counts at once", () => {
  const remaining = new RemainingTime();
  remaining.overall(0, 0);
  remaining.overall(0.49, 49);
  remaining.overall(0.99, 99);
  expect(remaining.left(99)).toBeCloseTo(1, 9);
  remaining.overall(0.8, 120);
  expect(remaining.left(120)).toBeCloseTo(30, 9);
  remaining.overall(0.9, 135);
  expect(remaining.left(135)).toBeCloseTo(15, 9);

  const resumed = new RemainingTime();
  resumed.overall(0.82, 0);
  resumed.overall(0.8, 10);
  expect(resumed.left(10)).toBeUndefined();
  resumed.overall(0.85, 35);
  expect(resumed.left(35)).toBeCloseTo(75, 9);
});
