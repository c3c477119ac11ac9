import { expect, test } from "vitest";
import { z } from "zod";
import {
  countersSchema,
  endIteration,
  endless,
  isOver,
  newCounters,
  parseState,
  savedNumber,
  shareOver,
} from "../../lib/run/training-run.ts";

const schema = countersSchema.extend({ metrics: z.record(z.string(), savedNumber) });
const state = { ...newCounters(), metrics: { loss: 0.5 } };

test("a checkpoint's state comes back from JSON, numbers that are not finite as NaN", () => {
  expect(parseState(schema, state)).toEqual(state);
  const saved = JSON.parse(JSON.stringify({ ...state, metrics: { loss: Number.NaN, norm: 2 } }));
  expect(parseState(schema, saved).metrics).toEqual({ loss: Number.NaN, norm: 2 });
});

test.each<[string, Record<string, unknown>, RegExp]>([
  ["a state of another algorithm", newCounters(), /metrics: .+\.$/],
  ["a count below 0", { ...state, updates: -1 }, /updates: .+\.$/],
  ["a number as text", { ...state, metrics: { loss: "0.5" } }, /metrics: loss: .+\.$/],
])("%s is refused", (_name, saved, message) => {
  expect(() => parseState(schema, saved)).toThrow(
    expect.objectContaining({ code: "ERR_CHECKPOINT", message: expect.stringMatching(message) }),
  );
});

test("a training of no iterations is complete", () => {
  expect(shareOver(newCounters(), { iterations: 0, environmentSteps: 0 }, 0)).toBe(1);
});

test("environment steps count with their updates, and end a training after them", () => {
  const length = { iterations: endless, environmentSteps: 100 };
  const counters = newCounters();
  const shares: number[] = [];
  for (const steps of [40, 80]) {
    counters.environmentSteps += steps;
    counters.collected = true;
    expect(isOver(counters, length)).toBe(false); // its updates are still to come
    for (const done of [0, 0.5, 1]) shares.push(shareOver(counters, length, done));
    endIteration(counters);
    expect(isOver(counters, length)).toBe(counters.environmentSteps >= 100);
  }
  // The last iteration begins where the first ended, and ends at 120 steps.
  const expected = [0, 0.2, 0.4, 0.4, 0.7, 1];
  for (const [i, share] of shares.entries()) expect(share).toBeCloseTo(expected[i]!, 12);
});
