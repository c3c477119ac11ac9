import { describe, expect, it } from "vitest";
import { type AdamWInputs, ops, Tensor } from "../../lib/ops/index.ts";
import { array, codeOf, f32 } from "../support/tensors.ts";

/** Repeatable numbers around 0. */
function numbers(count: number, seed: number, scale = 1): Float32Array {
  return Float32Array.from({ length: count }, (_, i) => scale * Math.sin((i + 1) * 12.9898 + seed * 78.233));
}

const shapes = [[33, 7], [40], [0, 3], [1, 1]];
const sizes = shapes.map((shape) => shape.reduce((a, b) => a * b, 1));
const tensors = (seed: number, scale = 1) =>
  shapes.map((shape, i) => Tensor.from(numbers(sizes[i]!, seed + i, scale), shape));
const rounded = (list: readonly Tensor[]) =>
  list.map((t) => Tensor.from(t.toArray(), t.shape, { dtype: "bfloat16" }));
const arrays = (list: readonly Tensor[]) => list.map((t) => Array.from(t.toArray() as Float32Array));

function expectClose(actual: number[][], expected: number[][], within: number) {
  for (const [i, row] of expected.entries()) {
    expect(actual[i]!.length).toBe(row.length);
    for (const [j, x] of row.entries()) expect(Math.abs(actual[i]![j]! - x)).toBeLessThan(within);
  }
}

const settings = { learningRate: 0.01, betas: [0.8, 0.95], epsilon: 1e-6, weightDecay: 0.1 } as const;

describe("adamw", () => {
  /** The method as its paper writes it, in float64, on gradients that stay the same. */
  function reference(start: number[][], gradients: number[][], steps: number, maxGradNorm: number) {
    const [beta1, beta2] = settings.betas;
    const norm = Math.sqrt(gradients.flat().reduce((sum, g) => sum + g * g, 0));
    const clip = maxGradNorm > 0 ? Math.min(1, maxGradNorm / (norm + 1e-6)) : 1;
    return start.map((weights, i) =>
      weights.map((start, j) => {
        let [w, m, v] = [start, 0, 0];
        const g = gradients[i]![j]! * clip;
        for (let t = 1; t <= steps; t++) {
          m = beta1 * m + (1 - beta1) * g;
          v = beta2 * v + (1 - beta2) * g * g;
          const decay = shapes[i]!.length >= 2 ? settings.learningRate * settings.weightDecay * w : 0;
          const root = Math.sqrt(v / (1 - beta2 ** t)) + settings.epsilon;
          w = w - decay - (settings.learningRate * (m / (1 - beta1 ** t))) / root;
        }
        return w;
      }),
    );
  }

  it.each([0, 1, 1e9])("steps as float64 does, with the largest norm %d", (maxGradNorm) => {
    const parameters = tensors(1);
    const start = arrays(parameters);
    const [m, v] = [tensors(0, 0), tensors(0, 0)];
    const gradient = arrays(tensors(9));
    const norm = Math.sqrt(gradient.flat().reduce((sum, g) => sum + g * g, 0));
    for (let step = 1; step <= 5; step++) {
      const gradients = tensors(9);
      const result = ops.adamw({ parameters, gradients, m, v, step, ...settings, maxGradNorm });
      expect(result.skipped).toBe(false);
      expect(result.gradNorm).toBeCloseTo(norm, 5);
      expect(arrays(gradients).flat()).toEqual(gradient.flat().map(() => 0));
    }
    expectClose(arrays(parameters), reference(start, gradient, 5, maxGradNorm), 1e-6);
  });

  it("holds bfloat16 parameters in float32, and takes a moving average along", () => {
    const masters = tensors(1);
    const parameters = rounded(masters);
    const target = tensors(4);
    const shadow = rounded(target);
    const expected = arrays(target);
    const [m, v] = [tensors(0, 0), tensors(0, 0)];
    for (let step = 1; step <= 3; step++) {
      const inputs = { parameters, masters, m, v, step, ...settings, gradients: tensors(9) };
      ops.adamw({ ...inputs, ema: { target, targetRate: 0.1, shadow } });
      for (const [i, row] of arrays(masters).entries()) {
        for (const [j, w] of row.entries()) expected[i]![j]! += 0.1 * (w - expected[i]![j]!);
      }
    }
    expectClose(arrays(target), expected, 1e-6);
    expect(arrays(parameters)).toEqual(arrays(rounded(masters)));
    expect(arrays(shadow)).toEqual(arrays(rounded(target)));
    expect(arrays(masters)).not.toEqual(arrays(parameters));

    const alone = tensors(1);
    const moments = { m: tensors(0, 0), v: tensors(0, 0) };
    for (let step = 1; step <= 3; step++) {
      ops.adamw({ parameters: alone, gradients: tensors(9), ...moments, step, ...settings });
    }
    expect(arrays(alone)).toEqual(arrays(masters));
  });

  it("skips a step whose gradient is not finite, and changes nothing", () => {
    for (const bad of [Number.NaN, Number.POSITIVE_INFINITY]) {
      const all = { parameters: tensors(1), m: tensors(2), v: tensors(3) };
      const ema = { target: tensors(4), targetRate: 0.5, shadow: rounded(tensors(5)) };
      const lists = () => [...Object.values(all), ema.target, ema.shadow].map(arrays);
      const before = lists();
      const gradients = tensors(9);
      gradients[1] = Tensor.from(numbers(40, 1).fill(bad, 39), [40]);
      const result = ops.adamw({ ...all, gradients, step: 1, ...settings, ema });
      expect(result.skipped).toBe(true);
      expect(Number.isFinite(result.gradNorm)).toBe(false);
      expect(lists()).toEqual(before);
      expect(arrays(gradients).flat()).toEqual(sizes.flatMap((size) => new Array(size).fill(0)));
    }
  });

  it("rejects mismatched arguments", () => {
    const good = () => ({
      ...{ parameters: tensors(1), gradients: tensors(2), m: tensors(3), v: tensors(3), step: 1 },
      ...settings,
    });
    const code = (changes: { [name in keyof AdamWInputs]?: unknown } & { momentum?: number }) =>
      codeOf(() => ops.adamw({ ...good(), ...changes } as AdamWInputs));
    const none = { parameters: [], gradients: [], m: [], v: [] };
    expect(code({})).toBe("no error");
    expect(code(none)).toBe("no error");
    for (const name of ["gradients", "m", "v", "masters"] as const) {
      expect(code({ [name]: [] })).toBe("ERR_SHAPE");
      expect(code({ [name]: rounded(tensors(1)) })).toBe("ERR_SHAPE");
      expect(code({ [name]: tensors(1).reverse() })).toBe("ERR_SHAPE");
      expect(code({ [name]: shapes })).toBe("ERR_VALUE");
      expect(code({ [name]: 3 })).toBe("ERR_VALUE");
    }
    expect(code({ parameters: rounded(tensors(1)) })).toBe("ERR_SHAPE");
    expect(code({ parameters: rounded(tensors(1)), masters: tensors(1) })).toBe("no error");
    expect(code({ step: 0 })).toBe("ERR_VALUE");
    expect(code({ step: 1.5 })).toBe("ERR_VALUE");
    expect(code({ ...none, step: undefined })).toBe("ERR_VALUE");
    expect(code({ learningRate: -1 })).toBe("ERR_VALUE");
    expect(code({ learningRate: undefined })).toBe("ERR_VALUE");
    expect(code({ betas: [0.9, 1] })).toBe("ERR_VALUE");
    expect(code({ epsilon: 0 })).toBe("ERR_VALUE");
    expect(code({ weightDecay: Number.POSITIVE_INFINITY })).toBe("ERR_VALUE");
    expect(code({ maxGradNorm: Number.NaN })).toBe("ERR_VALUE");
    expect(code({ momentum: 0.9 })).toBe("ERR_VALUE");
    expect(code({ ema: { target: tensors(1), targetRate: 0.5 } })).toBe("no error");
    expect(code({ ema: { target: tensors(1), targetRate: 2 } })).toBe("ERR_VALUE");
    expect(code({ ema: { target: tensors(1), targetRate: 0.5, decay: 1 } })).toBe("ERR_VALUE");
    expect(code({ ema: { target: [], targetRate: 0.5 } })).toBe("ERR_SHAPE");
    expect(code({ ema: { target: rounded(tensors(1)), targetRate: 0.5 } })).toBe("ERR_SHAPE");
    expect(code({ ema: { target: tensors(1), targetRate: 0.5, shadow: [] } })).toBe("ERR_SHAPE");
    const same = tensors(5);
    for (const [name, other] of [
      ["parameters", "gradients"],
      ["m", "v"],
      ["masters", "m"],
    ])
      expect(code({ [name!]: same, [other!]: same })).toBe("ERR_VALUE");
    expect(code({ parameters: same, ema: { target: same, targetRate: 0.5 } })).toBe("ERR_VALUE");
    expect(arrays(same)).toEqual(arrays(tensors(5)));
    const gone = tensors(1);
    gone[0]!.dispose();
    expect(code({ gradients: gone })).toBe("ERR_DISPOSED");
  });
});

describe("ema", () => {
  it("moves targets by τ, in place, mixed types in one call", () => {
    const target = [f32(Float32Array.of(1, 2, 3), [3]), f32(Float32Array.of(0), [1])];
    const online = [
      f32(Float32Array.of(2, 2, -1), [3]),
      Tensor.from(Float32Array.of(8), [1], { dtype: "bfloat16" }),
    ];
    ops.ema(target, online, 0.25);
    expectClose([array(target[0]!), array(target[1]!)], [[1.25, 2, 2], [2]], 1e-5);
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

  it("rejects mismatched arguments", () => {
    const [a, b] = [f32(Float32Array.of(1), [1]), f32(Float32Array.of(1, 2), [2])];
    expect(codeOf(() => ops.ema([a], [], 0.5))).toBe("ERR_SHAPE");
    expect(codeOf(() => ops.ema([a], [b], 0.5))).toBe("ERR_SHAPE");
    expect(codeOf(() => ops.ema([a], [a], -0.1))).toBe("ERR_VALUE");
    expect(codeOf(() => ops.ema([a], [a], Number.NaN))).toBe("ERR_VALUE");
    expect(codeOf(() => ops.ema([a], [{} as never], 0.5))).toBe("ERR_VALUE");
    expect(codeOf(() => ops.ema([], [], 0.5))).toBe("no error");
    const whole = Tensor.from(Int32Array.of(1), [1]);
    for (const online of [[whole], [Tensor.from(BigInt64Array.of(1n), [1])]]) {
      expect(codeOf(() => ops.ema([a], online, 0.5))).toBe("ERR_VALUE");
      expect(codeOf(() => ops.ema(online, [a], 0.5))).toBe("ERR_VALUE");
      expect(codeOf(() => ops.ema([a], [a], 0.5, { shadow: online }))).toBe("ERR_VALUE");
    }
    expect(array(a)).toEqual([1]);
  });

  it("leaves a tensor that is its own online tensor as it is, and refuses any other tensor twice", () => {
    const [a, b, c] = [1, 2, 3].map((x) => f32(new Float32Array(20_000).fill(x), [20_000])) as [
      Tensor,
      Tensor,
      Tensor,
    ];
    const code = (target: Tensor[], online: Tensor[], shadow?: Tensor[]) =>
      codeOf(() => ops.ema(target, online, 0.5, { shadow }));
    expect(code([a], [a], [a])).toBe("no error");
    expect(code([a, a], [b, b])).toBe("ERR_VALUE");
    expect(code([a, b], [b, c])).toBe("ERR_VALUE");
    expect(code([a, b], [b, a])).toBe("ERR_VALUE");
    expect(code([a], [b], [b])).toBe("ERR_VALUE");
    expect(code([a, b], [c, c], [b, a])).toBe("ERR_VALUE");
    for (const [i, tensor] of [a, b, c].entries()) expect(new Set(array(tensor))).toEqual(new Set([i + 1]));
    expect(code([a, b], [c, c], [a, b])).toBe("no error");
    expect([a, b, c].map((tensor) => array(tensor)[19_999])).toEqual([2, 2.5, 3]);
    const empty = f32(new Float32Array(0), [0]);
    expect(code([empty, empty], [empty, empty])).toBe("no error");
  });
});

describe("ema with a shadow", () => {
  it("copies the targets to the shadow, rounded to its type", () => {
    const [target, online] = [tensors(1), tensors(2)];
    const expected = arrays(target).map((row, i) =>
      row.map((t, j) => t + 0.25 * (arrays(online)[i]![j]! - t)),
    );
    const shadow = rounded(tensors(0, 0));
    ops.ema(target, rounded(online), 0, { shadow });
    expect(arrays(target)).toEqual(arrays(tensors(1)));
    expect(arrays(shadow)).toEqual(arrays(rounded(target)));
    ops.ema(target, online, 0.25, { shadow });
    expectClose(arrays(target), expected, 1e-6);
    expect(arrays(shadow)).toEqual(arrays(rounded(target)));
    ops.ema(target, online, 1, { shadow });
    expect(arrays(target)).toEqual(arrays(online));
    expect(arrays(shadow)).toEqual(arrays(rounded(online)));
  });

  it("rejects mismatched arguments", () => {
    const code = (options: object) => codeOf(() => ops.ema(tensors(1), tensors(2), 0.5, options));
    expect(code({ shadow: rounded(tensors(1)) })).toBe("no error");
    expect(code({ shadow: [] })).toBe("ERR_SHAPE");
    expect(code({ shadow: tensors(1).reverse() })).toBe("ERR_SHAPE");
    expect(code({ shadow: [1, 2, 3, 4] })).toBe("ERR_VALUE");
    expect(code({ seed: -1 })).toBe("ERR_VALUE");
    expect(code({ shadows: tensors(1) })).toBe("ERR_VALUE");
  });
});
