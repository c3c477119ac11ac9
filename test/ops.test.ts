import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { NlacError } from "../lib/errors.ts";
import { ops, Tensor } from "../lib/ops.ts";

function codeOf(call: () => unknown): string {
  try {
    call();
  } catch (error) {
    expect(error).toBeInstanceOf(NlacError);
    return (error as NlacError).code;
  }
  return "no error";
}

/** Repeatable numbers around 0. */
function numbers(count: number, seed: number, scale = 1): Float32Array {
  return Float32Array.from({ length: count }, (_, i) => scale * Math.sin((i + 1) * 12.9898 + seed * 78.233));
}

const f32 = (data: Float32Array, shape: number[]) => Tensor.from(data, shape);
const array = (tensor: Tensor) => Array.from(tensor.toArray() as Float32Array);

/** Rows of logits, hidden · weightᵀ / T, as log probabilities in float64. */
function logProbabilities(
  hidden: number[],
  weight: number[],
  sizes: { h: number; v: number },
  temperature = 1,
) {
  const { h, v } = sizes;
  return Array.from({ length: hidden.length / h }, (_, row) => {
    const logits = Array.from({ length: v }, (_, token) => {
      let sum = 0;
      for (let k = 0; k < h; k++) sum += hidden[row * h + k]! * weight[token * h + k]!;
      return sum / temperature;
    });
    const largest = Math.max(...logits);
    const total = largest + Math.log(logits.reduce((sum, x) => sum + Math.exp(x - largest), 0));
    return logits.map((x) => x - total);
  });
}

function expectClose(actual: readonly number[], expected: readonly number[], within = 1e-5) {
  expect(actual.length).toBe(expected.length);
  for (const [i, value] of actual.entries()) expect(Math.abs(value - expected[i]!)).toBeLessThan(within);
}

/** Central differences of `f` in every coordinate. */
function numericGradient(at: number[], f: (x: number[]) => number): number[] {
  const step = 1e-4;
  return at.map((x, i) => {
    const shift = (by: number) => f(at.with(i, x + by));
    return (shift(step) - shift(-step)) / (2 * step);
  });
}

describe("Tensor", () => {
  it("keeps every type's elements", () => {
    const cases = [
      Float32Array.of(1.5, -2, 3e38),
      Float64Array.of(Math.PI, -0, 1e300),
      BigInt64Array.of(1n, -(2n ** 62n), 0n),
      Int32Array.of(1, -(2 ** 31), 7),
    ];
    for (const data of cases) {
      using tensor = Tensor.from(data, [3, 1]);
      expect(tensor.toArray()).toEqual(data);
      expect(tensor.shape).toEqual([3, 1]);
      expect(tensor.device).toBe("cpu");
    }
    expect(Tensor.from(new Float32Array(0), [0, 4]).toArray()).toEqual(new Float32Array(0));
    expect(Tensor.from(Float32Array.of(4), []).shape).toEqual([]);
    // A view: its offset counts.
    expect(Tensor.from(new Float32Array([9, 1, 2]).subarray(1), [2]).toArray()).toEqual(
      Float32Array.of(1, 2),
    );
  });

  it("rounds to bfloat16, ties to even", () => {
    using tensor = Tensor.from(Float32Array.of(1, 1.00390625, 1.01171875, 3.14), [4], {
      dtype: "bfloat16",
    });
    expect(tensor.dtype).toBe("bfloat16");
    expect(array(tensor)).toEqual([1, 1, 1.015625, 3.140625]);
  });

  it("copies: later changes of the array do not show", () => {
    const data = Float32Array.of(1, 2);
    const tensor = f32(data, [2]);
    data[0] = 9;
    expect(array(tensor)).toEqual([1, 2]);
  });

  it("gives back any float32 bits and any shape", () => {
    fc.assert(
      fc.property(fc.float32Array({ maxLength: 40, noNaN: true }), (data) => {
        expect(Tensor.from(data, [data.length]).toArray()).toEqual(data);
      }),
    );
  });

  it("presses the garbage collector, so that forgotten tensors do not pile up", async () => {
    const data = new Float32Array(2_000_000);
    const before = process.memoryUsage.rss();
    let most = 0;
    for (let i = 0; i < 250; i++) {
      f32(data, [data.length]);
      await new Promise(setImmediate);
      most = Math.max(most, process.memoryUsage.rss() - before);
    }
    expect(most).toBeLessThan(1e9); // of 2e9 bytes in all
  });

  it("is disposed once and for all", () => {
    const tensor = f32(Float32Array.of(1), [1]);
    tensor.dispose();
    tensor.dispose();
    expect(codeOf(() => tensor.toArray())).toBe("ERR_DISPOSED");
    expect(codeOf(() => tensor.shape)).toBe("ERR_DISPOSED");
    expect(codeOf(() => ops.ema([tensor], [tensor], 0.5))).toBe("ERR_DISPOSED");
  });

  it("refuses what does not fit", () => {
    expect(codeOf(() => f32(Float32Array.of(1, 2), [3]))).toBe("ERR_SHAPE");
    expect(codeOf(() => f32(Float32Array.of(1, 2), [-2]))).toBe("ERR_SHAPE");
    expect(codeOf(() => f32(Float32Array.of(1, 2), [0.5, 4]))).toBe("ERR_SHAPE");
    expect(codeOf(() => f32(new Float32Array(0), [0, 2 ** 40, 2 ** 40]))).toBe("ERR_SHAPE");
    expect(codeOf(() => Tensor.from([1, 2] as never, [2]))).toBe("ERR_VALUE");
    expect(codeOf(() => Tensor.from(new Uint8Array(2) as never, [2]))).toBe("ERR_VALUE");
    expect(codeOf(() => Tensor.from(Float32Array.of(1), [1], { dtype: "float16" as never }))).toBe(
      "ERR_VALUE",
    );
    expect(codeOf(() => Tensor.from(Float32Array.of(1), [1], { device: "cuda:99" }))).toBe("ERR_DEVICE");
  });
});

describe("linearTokenNll", () => {
  const rows = 5;
  const h = 4;
  const v = 11;
  const hidden = numbers(rows * h, 1);
  const weight = numbers(v * h, 2);
  const targets = BigInt64Array.of(0n, 10n, 3n, 3n, 7n);
  const weights = Float32Array.of(1, 0.5, 0, -2, 1);
  const losses = (hiddenValues: number[], weightValues: number[]) =>
    logProbabilities(hiddenValues, weightValues, { h, v }).map((row, i) => -row[Number(targets[i]!)]!);
  const objective = (hiddenValues: number[], weightValues: number[]) =>
    losses(hiddenValues, weightValues).reduce((sum, loss, i) => sum + loss * weights[i]!, 0);

  it("gives -log p and the gradients of the weighted sum", () => {
    const result = ops.linearTokenNll({
      hidden: f32(hidden, [rows, h]),
      weight: f32(weight, [v, h]),
      targets: Tensor.from(targets, [rows]),
      weights: f32(weights, [rows]),
    });
    const [x, w] = [Array.from(hidden), Array.from(weight)];
    const expected = losses(x, w).map((loss, i) => (weights[i] === 0 ? 0 : loss));
    expectClose(array(result.losses), expected);
    expectClose(
      array(result.gradHidden),
      numericGradient(x, (at) => objective(at, w)),
      1e-4,
    );
    expectClose(
      array(result.gradWeight),
      numericGradient(w, (at) => objective(x, at)),
      1e-4,
    );
    expect(result.gradWeight.shape).toEqual([v, h]);
  });

  it("takes bfloat16 and keeps the matrix's gradient in float32", () => {
    const result = ops.linearTokenNll({
      hidden: Tensor.from(hidden, [rows, h], { dtype: "bfloat16" }),
      weight: Tensor.from(weight, [v, h], { dtype: "bfloat16" }),
      targets: Tensor.from(targets, [rows]),
      weights: f32(weights, [rows]),
    });
    expect(result.gradHidden.dtype).toBe("bfloat16");
    expect(result.gradWeight.dtype).toBe("float32");
    const expected = losses(Array.from(hidden), Array.from(weight)).map((x, i) => (weights[i] === 0 ? 0 : x));
    expectClose(array(result.losses), expected, 0.05);
  });

  it("names what does not fit", () => {
    const good = {
      hidden: f32(hidden, [rows, h]),
      weight: f32(weight, [v, h]),
      targets: Tensor.from(targets, [rows]),
      weights: f32(weights, [rows]),
    };
    const code = (changes: object) => codeOf(() => ops.linearTokenNll({ ...good, ...changes }));
    expect(code({})).toBe("no error");
    expect(code({ hidden: f32(hidden, [rows * h]) })).toBe("ERR_SHAPE");
    expect(code({ weight: f32(weight, [h, v]) })).toBe("ERR_SHAPE");
    expect(code({ targets: Tensor.from(targets.slice(1), [rows - 1]) })).toBe("ERR_SHAPE");
    expect(code({ weights: f32(weights, [rows, 1]) })).toBe("ERR_SHAPE");
    expect(
      code({
        targets: Tensor.from(
          targets.map(() => 11n),
          [rows],
        ),
      }),
    ).toBe("ERR_INDEX");
    expect(
      code({
        weights: f32(
          weights.map(() => Number.NaN),
          [rows],
        ),
      }),
    ).toBe("ERR_VALUE");
    expect(code({ temperature: 0 })).toBe("ERR_VALUE");
    expect(code({ hidden: hidden })).toBe("ERR_VALUE");
    expect(code({ targets: undefined })).toBe("ERR_VALUE");
  });
});

describe("linearTokenKl", () => {
  const rows = 3;
  const student = { h: 4, v: 9 };
  const teacher = { h: 6, v: 9 };
  const data = {
    studentHidden: numbers(rows * student.h, 1),
    studentWeight: numbers(student.v * student.h, 2),
    teacherHidden: numbers(rows * teacher.h, 3),
    teacherWeight: numbers(teacher.v * teacher.h, 4),
    weights: Float32Array.of(1, 0, 2.5),
  };
  const inputs = () => ({
    studentHidden: f32(data.studentHidden, [rows, student.h]),
    studentWeight: f32(data.studentWeight, [student.v, student.h]),
    teacherHidden: f32(data.teacherHidden, [rows, teacher.h]),
    teacherWeight: f32(data.teacherWeight, [teacher.v, teacher.h]),
    weights: f32(data.weights, [rows]),
  });
  const kl = (x: number[], w: number[], temperature: number) => {
    const q = logProbabilities(x, w, student, temperature);
    const p = logProbabilities(
      Array.from(data.teacherHidden),
      Array.from(data.teacherWeight),
      teacher,
      temperature,
    );
    return p.map((row, i) => row.reduce((sum, lp, token) => sum + Math.exp(lp) * (lp - q[i]![token]!), 0));
  };

  it.each([1, 0.7])("gives the KL and the student's gradients at temperature %d", (temperature) => {
    const result = ops.linearTokenKl({ ...inputs(), temperature });
    const [x, w] = [Array.from(data.studentHidden), Array.from(data.studentWeight)];
    const objective = (hidden: number[], weight: number[]) =>
      kl(hidden, weight, temperature).reduce((sum, loss, i) => sum + loss * data.weights[i]!, 0);
    expectClose(
      array(result.losses),
      kl(x, w, temperature).map((loss, i) => (data.weights[i] === 0 ? 0 : loss)),
    );
    expectClose(
      array(result.gradHidden),
      numericGradient(x, (at) => objective(at, w)),
      2e-4,
    );
    expectClose(
      array(result.gradWeight),
      numericGradient(w, (at) => objective(x, at)),
      2e-4,
    );
  });

  it("bounds itself from below with fewer tokens, and is the cross entropy on the sampled one", () => {
    const [full, few, all] = [
      ops.linearTokenKl(inputs()),
      ops.linearTokenKl({ ...inputs(), support: { topK: 3 } }),
      ops.linearTokenKl({ ...inputs(), support: { topK: student.v } }),
    ].map(({ losses }) => array(losses));
    for (const [i, loss] of few!.entries()) expect(loss).toBeLessThanOrEqual(full![i]! + 1e-6);
    expectClose(all!, full!);
    const targets = Tensor.from(BigInt64Array.of(1n, 2n, 8n), [rows]);
    const { studentHidden: hidden, studentWeight: weight, weights } = inputs();
    const sampled = ops.linearTokenKl({ ...inputs(), support: "sampled", targets });
    const nll = ops.linearTokenNll({ hidden, weight, targets, weights });
    expectClose(array(sampled.losses), array(nll.losses));
    expectClose(array(sampled.gradWeight), array(nll.gradWeight));
  });

  it("names what does not fit", () => {
    const code = (changes: object) => codeOf(() => ops.linearTokenKl({ ...inputs(), ...changes }));
    expect(code({})).toBe("no error");
    expect(code({ teacherWeight: f32(numbers(48, 1), [8, 6]) })).toBe("ERR_SHAPE");
    expect(code({ teacherHidden: f32(numbers(12, 1), [2, 6]) })).toBe("ERR_SHAPE");
    expect(code({ support: "sampled" })).toBe("ERR_VALUE");
    expect(code({ support: { topK: 0 } })).toBe("ERR_VALUE");
    expect(code({ support: "none" })).toBe("ERR_VALUE");
    expect(code({ temperature: Number.NaN })).toBe("ERR_VALUE");
  });
});

describe("ema", () => {
  it("moves targets by tau, in place, mixed types in one call", () => {
    const target = [f32(Float32Array.of(1, 2, 3), [3]), f32(Float32Array.of(0), [1])];
    const online = [
      f32(Float32Array.of(2, 2, -1), [3]),
      Tensor.from(Float32Array.of(8), [1], { dtype: "bfloat16" }),
    ];
    ops.ema(target, online, 0.25);
    expectClose(array(target[0]!), [1.25, 2, 2]);
    expectClose(array(target[1]!), [2]);
  });

  it("moves a bfloat16 target on average, though each change is below half an ulp", () => {
    const count = 4096;
    const target = Tensor.from(new Float32Array(count).fill(1), [count], { dtype: "bfloat16" });
    const online = f32(new Float32Array(count).fill(2), [count]);
    const mean = () => array(target).reduce((a, b) => a + b, 0) / count;
    for (let step = 0; step < 20; step++) ops.ema([target], [online], 0.001, { seed: 1, step });
    expect(mean()).toBeCloseTo(2 - 0.999 ** 20, 3);
    const again = Tensor.from(new Float32Array(count).fill(1), [count], { dtype: "bfloat16" });
    for (let step = 0; step < 20; step++) ops.ema([again], [online], 0.001, { seed: 1, step });
    expect(again.toArray()).toEqual(target.toArray());
    // Without a step of its own every call rounds anew.
    for (let call = 0; call < 20; call++) ops.ema([again], [online], 0.001);
    expect(array(again).reduce((a, b) => a + b, 0) / count).toBeCloseTo(2 - 0.999 ** 40, 3);
  });

  it("refuses what does not fit", () => {
    const [a, b] = [f32(Float32Array.of(1), [1]), f32(Float32Array.of(1, 2), [2])];
    expect(codeOf(() => ops.ema([a], [], 0.5))).toBe("ERR_SHAPE");
    expect(codeOf(() => ops.ema([a], [b], 0.5))).toBe("ERR_SHAPE");
    expect(codeOf(() => ops.ema([a], [a], -0.1))).toBe("ERR_VALUE");
    expect(codeOf(() => ops.ema([a], [a], Number.NaN))).toBe("ERR_VALUE");
    expect(codeOf(() => ops.ema([a], [{} as never], 0.5))).toBe("ERR_VALUE");
    expect(codeOf(() => ops.ema([], [], 0.5))).toBe("no error");
  });
});
