import { describe, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import { type LinearTokenPreferenceInputs, ops, type PreferenceLoss, Tensor } from "../../lib/ops/index.ts";

const [rows, width, vocabulary] = [11, 6, 23];
const offsets = [0, 3, 5, 6, 11];

/** Repeatable numbers around 0. */
const numbers = (count: number, seed: number, scale = 1) =>
  Float64Array.from({ length: count }, (_, i) => scale * Math.sin((i + 1) * 12.9898 + seed * 78.233));

const tensor = (data: Float32Array | Float64Array | BigInt64Array, shape: number[]) =>
  Tensor.from(data, shape);
const list = (values: Tensor) => Array.from(values.toArray() as Float64Array);

function inputs(own: Partial<LinearTokenPreferenceInputs> = {}): LinearTokenPreferenceInputs {
  return {
    hidden: tensor(numbers(rows * width, 1, 2), [rows, width]),
    head: tensor(numbers(vocabulary * width, 2), [vocabulary, width]),
    targets: tensor(
      BigInt64Array.from({ length: rows }, (_, i) => BigInt((i * 7) % vocabulary)),
      [rows],
    ),
    offsets,
    referenceLogProbs: tensor(Float64Array.of(-9, -8, -4, -13), [4]),
    pairWeights: tensor(Float64Array.of(1, -0.5), [2]),
    beta: 0.4,
    ...own,
  };
}

/** The loss and its slopes at both log probabilities, by the formulas. */
function formula(loss: PreferenceLoss, beta: number, ratios: [number, number], tokens: [number, number]) {
  if (loss === "ipo") {
    const error = ratios[0] / tokens[0] - ratios[1] / tokens[1] - 1 / (2 * beta);
    return [error ** 2, (2 * error) / tokens[0], (-2 * error) / tokens[1]] as const;
  }
  const x = beta * (ratios[0] - ratios[1]);
  if (loss === "hinge") return [Math.max(0, 1 - x), x < 1 ? -beta : 0, x < 1 ? beta : 0] as const;
  const slope = beta / (1 + Math.exp(x));
  return [Math.log1p(Math.exp(-x)), -slope, slope] as const;
}

describe.each(["sigmoid", "hinge", "ipo"] as const)("linearTokenPreference with %s", (loss) => {
  it("has the formula's losses, and the gradients of its slopes", () => {
    const given = inputs({ loss });
    const { losses, logProbs, gradHidden, gradHead } = ops.linearTokenPreference(given);
    const { hidden, head, targets } = given;
    const tokens = list(ops.linearTokenLogProbs({ hidden, head, targets }).logProbs);
    const sums = [0, 1, 2, 3].map((k) => tokens.slice(offsets[k], offsets[k + 1]).reduce((a, b) => a + b, 0));
    expect(losses.dtype).toBe("float64");
    for (const [k, sum] of sums.entries()) expect(list(logProbs)[k]).toBeCloseTo(sum, 10);

    const references = list(given.referenceLogProbs);
    const slopes = new Float64Array(rows);
    for (const [pair, weight] of [1, -0.5].entries()) {
      const sides = [2 * pair, 2 * pair + 1] as const;
      const [value, ...slopesOfPair] = formula(
        loss,
        0.4,
        [sums[sides[0]]! - references[sides[0]]!, sums[sides[1]]! - references[sides[1]]!],
        [offsets[sides[0] + 1]! - offsets[sides[0]]!, offsets[sides[1] + 1]! - offsets[sides[1]]!],
      );
      expect(list(losses)[pair]).toBeCloseTo(value, 10);
      for (const [side, text] of sides.entries())
        slopes.fill(weight * slopesOfPair[side]!, offsets[text], offsets[text + 1]);
    }
    const gradLogProbs = tensor(slopes, [rows]);
    const expected = ops.linearTokenLogProbs({ hidden, head, targets, gradLogProbs });
    for (const [ours, theirs] of [
      [gradHidden, expected.gradHidden],
      [gradHead, expected.gradHead],
    ] as const)
      for (const [i, value] of list(theirs).entries()) expect(list(ours)[i]).toBeCloseTo(value, 10);
  });
});

describe("linearTokenPreference", () => {
  it("weighs all pairs by 1 unless told otherwise, and adds into the given gradient", () => {
    const head = numbers(vocabulary * width, 2);
    const gradHead = tensor(new Float64Array(vocabulary * width).fill(1), [vocabulary, width]);
    const once = ops.linearTokenPreference(inputs({ pairWeights: undefined }));
    const added = ops.linearTokenPreference(inputs({ pairWeights: undefined, gradHead }));
    expect(added.gradHead).toBe(gradHead);
    for (let i = 0; i < head.length; i++)
      expect(list(gradHead)[i]).toBeCloseTo(1 + list(once.gradHead)[i]!, 10);
    const without = ops.linearTokenPreference(inputs({ pairWeights: undefined, withGradient: false }));
    expect(list(without.losses)).toEqual(list(once.losses));
    expect("gradHead" in without).toBe(false);
  });

  it("accepts no pairs", () => {
    const none = inputs({
      hidden: tensor(new Float64Array(), [0, width]),
      targets: tensor(new BigInt64Array(), [0]),
      ...{ offsets: [0], referenceLogProbs: tensor(new Float64Array(), [0]), pairWeights: undefined },
    });
    expect(list(ops.linearTokenPreference(none).losses)).toEqual([]);
  });

  it.each<[string, object, string]>([
    ["offsets that do not begin with 0", { offsets: [1, 3, 5, 6, 11] }, "ERR_SHAPE"],
    ["offsets that end too early", { offsets: [0, 3, 5, 6, 10] }, "ERR_SHAPE"],
    ["an empty response", { offsets: [0, 3, 3, 6, 11] }, "ERR_SHAPE"],
    ["half a pair", { offsets: [0, 3, 5, 11] }, "ERR_SHAPE"],
    ["no offsets", { offsets: undefined }, "ERR_SHAPE"],
    ["a fraction", { offsets: [0, 2.5, 5, 6, 11] }, "ERR_SHAPE"],
    ["too few references", { referenceLogProbs: tensor(new Float64Array(3), [3]) }, "ERR_SHAPE"],
    ["too many weights", { pairWeights: tensor(new Float64Array(3), [3]) }, "ERR_SHAPE"],
    ["a beta of 0", { beta: 0 }, "ERR_VALUE"],
    ["another loss", { loss: "kto" }, "ERR_VALUE"],
    ["smoothing of 0.5", { labelSmoothing: 0.5 }, "ERR_VALUE"],
    [
      "a NaN reference",
      { referenceLogProbs: tensor(new Float64Array(4).fill(Number.NaN), [4]) },
      "ERR_VALUE",
    ],
    [
      "a target outside the vocabulary",
      { targets: tensor(new BigInt64Array(rows).fill(23n), [rows]) },
      "ERR_INDEX",
    ],
    ["an unknown option", { bta: 1 }, "ERR_VALUE"],
  ])("%s: refused", (_, own, code) => {
    expect(() => ops.linearTokenPreference(inputs(own))).toThrow(NlacError);
    try {
      ops.linearTokenPreference(inputs(own));
    } catch (error) {
      expect((error as NlacError).code).toBe(code);
    }
  });
});
