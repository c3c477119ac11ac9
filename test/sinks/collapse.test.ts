import { expect, test } from "vitest";
import { CollapseDetector } from "../../lib/sinks/collapse.ts";

const messages = (metric: string, values: number[]) => {
  const detector = new CollapseDetector();
  return values.map((value) => detector.row({ [metric]: value }));
};
const times = (count: number, value: number) => Array.from({ length: count }, () => value);

test("success that falls to a quarter of its best average is a collapse, once", () => {
  const told = messages("rollout/success", [...times(5, 0.8), ...times(10, 0.1)]);
  expect(told.filter(Boolean)).toEqual([
    "success of training episodes fell from 0.80 to 0.10 (means of 5 rows)",
  ]);
  expect(told.findIndex(Boolean)).toBe(9);
});

test("noise, low success and a slow fall by half are none", () => {
  expect(messages("eval/success", [0.8, 0, 0.9, 0.7, 0, 0.8, 0.9, 0.1]).some(Boolean)).toBe(false);
  expect(messages("eval/success", [...times(5, 0.1), ...times(9, 0)]).some(Boolean)).toBe(false);
  expect(messages("eval/success", [...times(5, 0.8), ...times(9, 0.4)]).some(Boolean)).toBe(false);
});

test("actions that become unreadable are a collapse; a model that never could is none", () => {
  expect(messages("parse/action", [...times(5, 1), ...times(5, 0.2)]).filter(Boolean)).toHaveLength(1);
  expect(messages("parse/action", [...times(5, 0.5), ...times(9, 0)]).some(Boolean)).toBe(false);
});
