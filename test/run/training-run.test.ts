import { expect, test } from "vitest";
import { z } from "zod";
import { countersSchema, newCounters, parseState, savedNumber } from "../../lib/run/training-run.ts";

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
