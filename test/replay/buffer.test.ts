import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import type { Transition } from "../../lib/episodes/trajectory.ts";
import { ReplayBuffer, type ReplayBufferOptions } from "../../lib/replay/buffer.ts";
import { mean } from "../../lib/statistics/mean.ts";
import { inDirectory } from "../support/tiny.ts";

const buffers: ReplayBuffer[] = [];
afterEach(() => {
  for (const buffer of buffers.splice(0)) buffer.dispose();
});

function empty(options: Partial<ReplayBufferOptions> = {}): ReplayBuffer {
  const buffer = new ReplayBuffer({
    capacity: 16,
    priorityExponent: 1,
    importanceExponent: 0,
    seed: 3,
    ...options,
  });
  buffers.push(buffer);
  return buffer;
}

const transition = (trajectory: number) => ({ trajectory, turn: 0 }) as Transition;

/** One transition of each of `episodes` episodes. */
function filled(
  episodes: number,
  options: { priorityExponent?: number; importanceExponent?: number } = {},
): ReplayBuffer {
  const buffer = empty(options);
  for (let trajectory = 0; trajectory < episodes; trajectory++) buffer.add([transition(trajectory)]);
  return buffer;
}

const drawnEpisodes = (buffer: ReplayBuffer) =>
  new Set(buffer.get(buffer.sample(200).indices).map(({ trajectory }) => trajectory));

describe("retired episodes", () => {
  test.each([0, 0.1, 1])("are stored and not drawn any more, α = %f", (priorityExponent) => {
    const buffer = filled(5, { priorityExponent });
    expect(drawnEpisodes(buffer)).toEqual(new Set([0, 1, 2, 3, 4]));
    buffer.retire(3);
    expect(drawnEpisodes(buffer)).toEqual(new Set([3, 4]));
    expect(buffer.size).toBe(5);
    buffer.add([transition(5)]);
    expect(drawnEpisodes(buffer)).toEqual(new Set([3, 4, 5]));
  });

  test("leave nothing to draw if all are retired", () => {
    const buffer = filled(2);
    expect(buffer.drawable).toBe(true);
    buffer.retire(2);
    expect(buffer.drawable).toBe(false);
    expect(() => buffer.sample(1)).toThrow(expect.objectContaining({ code: "ERR_EMPTY" }));
  });
});

test("a new transition gets the largest current priority, 1 if there is none", async () => {
  const capacity = 4;
  const call = fc.oneof(
    fc.record({ add: fc.integer({ min: 1, max: 3 }) }),
    fc.record({ at: fc.nat(capacity - 1), loss: fc.integer({ min: 1, max: 80 }).map((x) => x / 16) }),
    fc.record({ retire: fc.nat(8) }),
    fc.constant("resume" as const),
  );
  await inDirectory((directory) =>
    fc.assert(
      fc.asyncProperty(fc.array(call, { maxLength: 20 }), async (calls) => {
        let buffer = empty({ capacity });
        const stored: Transition[] = [];
        const expected: number[] = []; // of the last `capacity` of them
        for (const call of calls) {
          if (call === "resume") {
            buffer.save(directory);
            buffer = empty({ capacity });
            await buffer.restore(directory, stored);
          } else if ("add" in call) {
            const largest = Math.max(...expected, 0) || 1;
            const added = Array.from({ length: call.add }, (_, i) => transition(stored.length + i));
            buffer.add(added);
            for (const one of added) expected[(stored.push(one) - 1) % capacity] = largest;
          } else if ("retire" in call) {
            buffer.retire(call.retire);
            for (const i of expected.keys())
              if (buffer.get([i])[0]!.trajectory < call.retire) expected[i] = 0;
          } else if (call.at < expected.length) {
            buffer.setPriority(call.at, call.loss);
            expected[call.at] = call.loss;
          }
          expect(expected.map((_, i) => buffer.priority(i))).toEqual(expected);
        }
      }),
    ),
  );
});

test("priorities of other episodes are refused: of more, and of fewer", async () => {
  await inDirectory(async (directory) => {
    filled(3).save(directory);
    const refused = { code: "ERR_CHECKPOINT", message: expect.stringContaining("counts 3 transitions") };
    for (const count of [2, 4]) {
      const transitions = Array.from({ length: count }, (_, i) => transition(i));
      await expect(empty().restore(directory, transitions)).rejects.toMatchObject(refused);
    }
  });
});

test("a loss of 0 leaves a transition a chance to be drawn, and an invalid loss is rejected", () => {
  const buffer = filled(1);
  buffer.setPriority(0, 0);
  expect(buffer.priority(0)).toBeGreaterThan(0);
  expect(buffer.sample(1).indices).toEqual([0]);
  for (const priority of [-1, Number.NaN, Number.POSITIVE_INFINITY]) {
    expect(() => buffer.setPriority(0, priority)).toThrow(expect.objectContaining({ code: "ERR_PRIORITY" }));
  }
});

test.each([0.1, 0.5, 1])("a loss of 0 makes a transition rare, α = %f", (priorityExponent) => {
  const buffer = filled(4, { priorityExponent });
  buffer.setPriority(0, 0);
  const drawn = buffer.sample(10_000).indices.filter((index) => index === 0).length;
  expect(drawn / 10_000).toBeLessThan(1e-3);
});

describe("metrics of a draw", () => {
  test("by hand", () => {
    const buffer = filled(4);
    for (const [i, priority] of [4, 2, 1, 1].entries()) buffer.setPriority(i, priority);
    const sample = { indices: [3, 3, 1], weights: [1, 0.5, 0.75] };
    const metrics = buffer.metrics(sample, 10);
    expect(metrics["replay/size"]).toBe(4);
    // The entropy of 1/2, 1/4, 1/8 and 1/8 is log 2 (1/2 · 1 + 1/4 · 2 + 1/4 · 3).
    expect(metrics["replay/effective"]).toBeCloseTo(2 ** 1.75, 12);
    expect(metrics["replay/age"]).toBeCloseTo((6 + 6 + 8) / 3, 12);
    expect(metrics["replay/weight"]).toBe(0.75);
  });

  test("uniform sampling draws from all, prioritized sampling from as many as the entropy of P says", () => {
    const uniform = filled(8, { priorityExponent: 0 });
    expect(uniform.metrics(uniform.sample(5), 8)["replay/effective"]).toBeCloseTo(8, 5);
    const buffer = filled(3, { importanceExponent: 0.5 });
    for (const [i, priority] of [2, 1, 1].entries()) buffer.setPriority(i, priority);
    const sample = buffer.sample(4096);
    const metrics = buffer.metrics(sample, 3);
    const entropy = mean(sample.probabilities.map((probability) => -Math.log(probability)));
    expect(metrics["replay/effective"]).toBeCloseTo(Math.exp(entropy), 1);
    // Half of the draws weigh √½, the others 1.
    expect(metrics["replay/weight"]).toBeCloseTo((1 + Math.SQRT1_2) / 2, 1);
  });

  test("a run of single draws shows that one transition has most of P, also beside retired ones", () => {
    const buffer = empty({ capacity: 110 });
    buffer.add(Array.from({ length: 110 }, (_, i) => transition(i)));
    buffer.retire(10);
    for (let i = 10; i < 110; i++) buffer.setPriority(i, i === 42 ? 0.9 : 0.1 / 99);
    const rows = Array.from(
      { length: 200 },
      () => buffer.metrics(buffer.sample(1), 110)["replay/effective"]!,
    );
    const effective = Math.exp(-0.9 * Math.log(0.9) - 0.1 * Math.log(0.1 / 99));
    expect(mean(rows)).toBeCloseTo(effective, 5);
    expect(effective).toBeLessThan(2.2);
  });

  test("of a large buffer some priorities are read", () => {
    const buffer = empty({ capacity: 300_000, priorityExponent: 0.5 });
    buffer.add(Array.from({ length: 300_000 }, (_, i) => transition(i)));
    buffer.retire(150_000);
    expect(buffer.metrics(buffer.sample(1), 300_000)["replay/effective"]! / 150_000).toBeCloseTo(1, 4);
  });
});
