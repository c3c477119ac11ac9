import { describe, expect, it } from "vitest";
import { ops, Tensor } from "../../lib/ops/index.ts";
import { array, codeOf, expectClose, f32 } from "../support/tensors.ts";

/** Repeatable numbers around 0. */
function numbers(count: number, seed: number, scale = 1): Float32Array {
  return Float32Array.from({ length: count }, (_, i) => scale * Math.sin((i + 1) * 12.9898 + seed * 78.233));
}

/** Rows of logits, hidden · headᵀ / T, as log probabilities in float64. */
function logProbabilities(
  hidden: number[],
  head: number[],
  sizes: { h: number; v: number },
  temperature = 1,
) {
  const { h, v } = sizes;
  return Array.from({ length: hidden.length / h }, (_, row) => {
    const logits = Array.from({ length: v }, (_, token) => {
      let sum = 0;
      for (let k = 0; k < h; k++) sum += hidden[row * h + k]! * head[token * h + k]!;
      return sum / temperature;
    });
    const largest = Math.max(...logits);
    const total = largest + Math.log(logits.reduce((sum, x) => sum + Math.exp(x - largest), 0));
    return logits.map((x) => x - total);
  });
}

/** Central differences of `f` in every coordinate. */
function numericGradient(at: number[], f: (x: number[]) => number): number[] {
  const step = 1e-4;
  return at.map((x, i) => {
    const shift = (by: number) => f(at.with(i, x + by));
    return (shift(step) - shift(-step)) / (2 * step);
  });
}

describe("linearTokenNll", () => {
  const rows = 5;
  const h = 4;
  const v = 11;
  const hidden = numbers(rows * h, 1);
  const head = numbers(v * h, 2);
  const targets = BigInt64Array.of(0n, 10n, 3n, 3n, 7n);
  const rowWeights = Float32Array.of(1, 0.5, 0, -2, 1);
  const losses = (hiddenValues: number[], weightValues: number[]) =>
    logProbabilities(hiddenValues, weightValues, { h, v }).map((row, i) => -row[Number(targets[i]!)]!);
  const objective = (hiddenValues: number[], weightValues: number[]) =>
    losses(hiddenValues, weightValues).reduce((sum, loss, i) => sum + loss * rowWeights[i]!, 0);

  it("gives -log p and the gradients of the weighted sum", () => {
    const result = ops.linearTokenNll({
      hidden: f32(hidden, [rows, h]),
      head: f32(head, [v, h]),
      targets: Tensor.from(targets, [rows]),
      rowWeights: f32(rowWeights, [rows]),
    });
    const [x, w] = [Array.from(hidden), Array.from(head)];
    const expected = losses(x, w).map((loss, i) => (rowWeights[i] === 0 ? 0 : loss));
    expectClose(array(result.losses), expected);
    expectClose(
      array(result.gradHidden),
      numericGradient(x, (at) => objective(at, w)),
      1e-4,
    );
    expectClose(
      array(result.gradHead),
      numericGradient(w, (at) => objective(x, at)),
      1e-4,
    );
    expect(result.gradHead.shape).toEqual([v, h]);
  });

  it("takes bfloat16 and keeps the matrix's gradient in float32", () => {
    const result = ops.linearTokenNll({
      hidden: Tensor.from(hidden, [rows, h], { dtype: "bfloat16" }),
      head: Tensor.from(head, [v, h], { dtype: "bfloat16" }),
      targets: Tensor.from(targets, [rows]),
      rowWeights: f32(rowWeights, [rows]),
    });
    expect(result.gradHidden.dtype).toBe("bfloat16");
    expect(result.gradHead.dtype).toBe("float32");
    const expected = losses(Array.from(hidden), Array.from(head)).map((x, i) =>
      rowWeights[i] === 0 ? 0 : x,
    );
    expectClose(array(result.losses), expected, 0.05);
  });

  it("rejects mismatched arguments by name", () => {
    const good = {
      hidden: f32(hidden, [rows, h]),
      head: f32(head, [v, h]),
      targets: Tensor.from(targets, [rows]),
      rowWeights: f32(rowWeights, [rows]),
    };
    const code = (changes: object) => codeOf(() => ops.linearTokenNll({ ...good, ...changes }));
    expect(code({})).toBe("no error");
    expect(code({ hidden: f32(hidden, [rows * h]) })).toBe("ERR_SHAPE");
    expect(code({ head: f32(head, [h, v]) })).toBe("ERR_SHAPE");
    expect(code({ targets: Tensor.from(targets.slice(1), [rows - 1]) })).toBe("ERR_SHAPE");
    expect(code({ rowWeights: f32(rowWeights, [rows, 1]) })).toBe("ERR_SHAPE");
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
        rowWeights: f32(
          rowWeights.map(() => Number.NaN),
          [rows],
        ),
      }),
    ).toBe("ERR_VALUE");
    expect(code({ temperature: 0 })).toBe("ERR_VALUE");
    expect(code({ hidden: hidden })).toBe("ERR_VALUE");
    expect(code({ targets: undefined })).toBe("ERR_VALUE");
    expect(code({ zLoss: -1 })).toBe("ERR_VALUE");
    expect(code({ entropyCoefficient: Number.NaN })).toBe("ERR_VALUE");
    expect(code({ withEntropies: 1 })).toBe("ERR_VALUE");
    expect(code({ withGradient: "no" })).toBe("ERR_VALUE");
    expect(code({ workspaceBytes: -1 })).toBe("ERR_VALUE");
    expect(code({ gradHead: f32(head, [h, v]) })).toBe("ERR_SHAPE");
    expect(code({ gradHead: Tensor.from(head, [v, h], { dtype: "bfloat16" }) })).toBe("ERR_VALUE");
    const same = f32(head, [v, h]);
    expect(code({ head: same, gradHead: same })).toBe("ERR_VALUE");
    expect(array(same)).toEqual(Array.from(head));
    expect(() => ops.linearTokenNll({ ...good, labelSmoothing: 0.1 } as never)).toThrow(
      /linearTokenNll has no "labelSmoothing"/,
    );
  });

  it("takes z-loss and entropy into the loss and its gradient", () => {
    const [zLoss, entropyCoefficient, temperature] = [0.05, 0.3, 0.8];
    const parts = (x: number[], w: number[]) =>
      logProbabilities(x, w, { h, v }, temperature).map((row, i) => {
        // log Σ exp(logits / T) is any logit / T less its log probability.
        let logit = 0;
        for (let k = 0; k < h; k++) logit += x[i * h + k]! * w[k]!;
        return {
          nll: -row[Number(targets[i]!)]!,
          entropy: -row.reduce((sum, lp) => sum + Math.exp(lp) * lp, 0),
          logSum: logit / temperature - row[0]!,
        };
      });
    const losses = (x: number[], w: number[]) =>
      parts(x, w).map((part) => part.nll + zLoss * part.logSum ** 2 - entropyCoefficient * part.entropy);
    const objective = (x: number[], w: number[]) =>
      losses(x, w).reduce((sum, loss, i) => sum + loss * rowWeights[i]!, 0);
    const result = ops.linearTokenNll({
      hidden: f32(hidden, [rows, h]),
      head: f32(head, [v, h]),
      targets: Tensor.from(targets, [rows]),
      rowWeights: f32(rowWeights, [rows]),
      ...{ zLoss, entropyCoefficient, temperature, withEntropies: true },
    });
    const [x, w] = [Array.from(hidden), Array.from(head)];
    const used = (values: number[]) => values.map((value, i) => (rowWeights[i] === 0 ? 0 : value));
    expectClose(array(result.losses), used(losses(x, w)));
    expectClose(array(result.entropies!), used(parts(x, w).map((part) => part.entropy)));
    expectClose(array(result.logProbs), used(parts(x, w).map((part) => -part.nll)));
    expectClose(
      array(result.gradHidden),
      numericGradient(x, (at) => objective(at, w)),
      2e-4,
    );
    expectClose(
      array(result.gradHead),
      numericGradient(w, (at) => objective(x, at)),
      2e-4,
    );
  });

  it("adds the matrix's gradient into a tensor of the caller's, or leaves gradients out", () => {
    const inputs = {
      hidden: f32(hidden, [rows, h]),
      head: f32(head, [v, h]),
      targets: Tensor.from(targets, [rows]),
      rowWeights: f32(rowWeights, [rows]),
    };
    const once = array(ops.linearTokenNll(inputs).gradHead);
    const gradHead = f32(new Float32Array(v * h).fill(1), [v, h]);
    expect(ops.linearTokenNll({ ...inputs, gradHead }).gradHead).toBe(gradHead);
    ops.linearTokenNll({ ...inputs, gradHead });
    expectClose(
      array(gradHead),
      once.map((x) => 1 + 2 * x),
    );
    const without = ops.linearTokenNll({ ...inputs, gradHead, withGradient: false });
    expect(Object.keys(without).sort()).toEqual(["logProbs", "losses"]);
    expectClose(
      array(gradHead),
      once.map((x) => 1 + 2 * x),
    );
  });
});

describe("linearTokenLogProbs", () => {
  const [rows, h, v] = [4, 3, 7];
  const inputs = () => ({
    hidden: f32(numbers(rows * h, 5), [rows, h]),
    head: f32(numbers(v * h, 6), [v, h]),
    targets: Tensor.from(BigInt64Array.of(6n, 0n, 2n, 2n), [rows]),
  });

  it("gives log probabilities, and the gradients of a loss whose gradient at them is given", () => {
    const plain = ops.linearTokenLogProbs({ ...inputs(), withEntropies: true });
    expect(Object.keys(plain).sort()).toEqual(["entropies", "logProbs"]);
    const rowWeights = f32(new Float32Array(rows).fill(1), [rows]);
    const nll = ops.linearTokenNll({ ...inputs(), rowWeights });
    expectClose(
      array(plain.logProbs),
      array(nll.losses).map((x) => -x),
    );
    // Of Σ -logProbs, whose gradient at each is -1.
    const gradLogProbs = f32(new Float32Array(rows).fill(-1), [rows]);
    const back = ops.linearTokenLogProbs({ ...inputs(), gradLogProbs });
    expectClose(array(back.gradHidden), array(nll.gradHidden));
    expectClose(array(back.gradHead), array(nll.gradHead));
    // A gradient of 0 is not a mask: the log probability is still computed.
    const zero = ops.linearTokenLogProbs({ ...inputs(), gradLogProbs: f32(new Float32Array(rows), [rows]) });
    expectClose(array(zero.logProbs), array(plain.logProbs));
    expect(array(zero.gradHidden).every((x) => x === 0)).toBe(true);
    const masked = ops.linearTokenLogProbs({
      ...inputs(),
      rowWeights: f32(Float32Array.of(1, 0, 1, 1), [rows]),
    });
    expect(array(masked.logProbs)[1]).toBe(0);
  });

  it("rejects mismatched arguments by name", () => {
    const code = (changes: object) => codeOf(() => ops.linearTokenLogProbs({ ...inputs(), ...changes }));
    expect(code({})).toBe("no error");
    expect(code({ gradLogProbs: f32(Float32Array.of(1), [1]) })).toBe("ERR_SHAPE");
    expect(code({ gradLogProbs: f32(Float32Array.of(1, 1, Number.NaN, 1), [rows]) })).toBe("ERR_VALUE");
    expect(code({ zLoss: 0 })).toBe("ERR_VALUE");
  });
});

describe("linearTokenSurrogate", () => {
  const [rows, h, v] = [6, 4, 9];
  const hidden = numbers(rows * h, 7);
  const head = numbers(v * h, 8);
  const targets = BigInt64Array.of(1n, 8n, 0n, 4n, 4n, 3n);
  const rowWeights = Float32Array.of(1, 0.5, 1, 0, 2, 1);
  const advantages = Float32Array.of(1, 1, -1, 1, -0.5, 0.25);
  const current = logProbabilities(Array.from(hidden), Array.from(head), { h, v }).map(
    (row, i) => row[Number(targets[i]!)]!,
  );
  // Ratios of e^0.5, e^-0.5, e^-0.5, …: over, free (the advantage is positive), under, masked,
  // free, free.
  const oldLogProbs = Float32Array.from([0.5, -0.5, -0.5, 0, 0.1, 0], (d, i) => current[i]! - d);
  const referenceLogProbs = Float32Array.from([0.2, 0, -0.3, 0, 1, -1], (d, i) => current[i]! + d);
  const inputs = () => ({
    hidden: f32(hidden, [rows, h]),
    head: f32(head, [v, h]),
    targets: Tensor.from(targets, [rows]),
    rowWeights: f32(rowWeights, [rows]),
    oldLogProbs: f32(oldLogProbs, [rows]),
    advantages: f32(advantages, [rows]),
  });
  const settings = { clipLow: 0.2, clipHigh: 0.3, klCoefficient: 0.1 };
  const losses = (x: number[], w: number[]) =>
    logProbabilities(x, w, { h, v }).map((row, i) => {
      const logProb = row[Number(targets[i]!)]!;
      const ratio = Math.exp(logProb - oldLogProbs[i]!);
      const held = Math.min(Math.max(ratio, 0.8), 1.3);
      const d = referenceLogProbs[i]! - logProb;
      return -Math.min(ratio * advantages[i]!, held * advantages[i]!) + 0.1 * (Math.exp(d) - d - 1);
    });

  it("gives the clipped objective with its KL, what was clipped, and the gradients", () => {
    const result = ops.linearTokenSurrogate({
      ...inputs(),
      ...settings,
      referenceLogProbs: f32(referenceLogProbs, [rows]),
    });
    const [x, w] = [Array.from(hidden), Array.from(head)];
    const objective = (a: number[], b: number[]) =>
      losses(a, b).reduce((sum, loss, i) => sum + loss * rowWeights[i]!, 0);
    expectClose(
      array(result.losses),
      losses(x, w).map((loss, i) => (rowWeights[i] === 0 ? 0 : loss)),
    );
    expect(Array.from(result.clipped.toArray() as Int32Array)).toEqual([1, 0, -1, 0, 0, 0]);
    expectClose(
      array(result.ratios),
      current.map((logProb, i) => (rowWeights[i] === 0 ? 0 : Math.exp(logProb - oldLogProbs[i]!))),
    );
    expectClose(
      array(result.gradHidden),
      numericGradient(x, (at) => objective(at, w)),
      2e-4,
    );
    expectClose(
      array(result.gradHead),
      numericGradient(w, (at) => objective(x, at)),
      2e-4,
    );
  });

  it("rejects mismatched arguments by name", () => {
    const code = (changes: object) => codeOf(() => ops.linearTokenSurrogate({ ...inputs(), ...changes }));
    expect(code({})).toBe("no error");
    expect(code({ clipLow: 1.5 })).toBe("ERR_VALUE");
    expect(code({ clipHigh: -0.1 })).toBe("ERR_VALUE");
    expect(code({ klCoefficient: 0.1 })).toBe("ERR_VALUE");
    expect(code({ advantages: f32(Float32Array.of(1), [1]) })).toBe("ERR_SHAPE");
    expect(code({ oldLogProbs: undefined })).toBe("ERR_VALUE");
    expect(code({ clip: 0.2 })).toBe("ERR_VALUE");
  });
});

describe("linearTokenKl", () => {
  const rows = 3;
  const student = { h: 4, v: 9 };
  const teacher = { h: 6, v: 9 };
  const data = {
    studentHidden: numbers(rows * student.h, 1),
    studentHead: numbers(student.v * student.h, 2),
    teacherHidden: numbers(rows * teacher.h, 3),
    teacherHead: numbers(teacher.v * teacher.h, 4),
    rowWeights: Float32Array.of(1, 0, 2.5),
  };
  const inputs = () => ({
    studentHidden: f32(data.studentHidden, [rows, student.h]),
    studentHead: f32(data.studentHead, [student.v, student.h]),
    teacherHidden: f32(data.teacherHidden, [rows, teacher.h]),
    teacherHead: f32(data.teacherHead, [teacher.v, teacher.h]),
    rowWeights: f32(data.rowWeights, [rows]),
  });
  const kl = (x: number[], w: number[], temperature: number) => {
    const q = logProbabilities(x, w, student, temperature);
    const p = logProbabilities(
      Array.from(data.teacherHidden),
      Array.from(data.teacherHead),
      teacher,
      temperature,
    );
    return p.map((row, i) => row.reduce((sum, lp, token) => sum + Math.exp(lp) * (lp - q[i]![token]!), 0));
  };

  it.each([1, 0.7])("gives the KL and the student's gradients at temperature %d", (temperature) => {
    const result = ops.linearTokenKl({ ...inputs(), temperature });
    const [x, w] = [Array.from(data.studentHidden), Array.from(data.studentHead)];
    const objective = (hidden: number[], head: number[]) =>
      kl(hidden, head, temperature).reduce((sum, loss, i) => sum + loss * data.rowWeights[i]!, 0);
    expectClose(
      array(result.losses),
      kl(x, w, temperature).map((loss, i) => (data.rowWeights[i] === 0 ? 0 : loss)),
    );
    expectClose(
      array(result.gradHidden),
      numericGradient(x, (at) => objective(at, w)),
      2e-4,
    );
    expectClose(
      array(result.gradHead),
      numericGradient(w, (at) => objective(x, at)),
      2e-4,
    );
  });

  it.each([
    { divergence: "crossEntropy" as const, of: (p: number, q: number) => -Math.exp(p) * q },
    { divergence: "reverseKl" as const, of: (p: number, q: number) => Math.exp(q) * (q - p) },
    {
      divergence: { jensenShannon: 0.3 },
      of: (p: number, q: number) => {
        const m = Math.log(0.3 * Math.exp(p) + 0.7 * Math.exp(q));
        return 0.3 * Math.exp(p) * (p - m) + 0.7 * Math.exp(q) * (q - m);
      },
    },
  ])("gives the divergence $divergence and the student's gradients", ({ divergence, of }) => {
    const result = ops.linearTokenKl({ ...inputs(), divergence });
    const [x, w] = [Array.from(data.studentHidden), Array.from(data.studentHead)];
    const p = logProbabilities(Array.from(data.teacherHidden), Array.from(data.teacherHead), teacher);
    const losses = (hidden: number[], head: number[]) =>
      logProbabilities(hidden, head, student).map((row, i) =>
        row.reduce((sum, q, token) => sum + of(p[i]![token]!, q), 0),
      );
    const objective = (hidden: number[], head: number[]) =>
      losses(hidden, head).reduce((sum, loss, i) => sum + loss * data.rowWeights[i]!, 0);
    expectClose(
      array(result.losses),
      losses(x, w).map((loss, i) => (data.rowWeights[i] === 0 ? 0 : loss)),
    );
    expectClose(
      array(result.gradHidden),
      numericGradient(x, (at) => objective(at, w)),
      2e-4,
    );
    expectClose(
      array(result.gradHead),
      numericGradient(w, (at) => objective(x, at)),
      2e-4,
    );
    // The bucket of all other tokens loses a little, and nothing if it is empty.
    const few = array(ops.linearTokenKl({ ...inputs(), divergence, support: { topK: student.v } }).losses);
    expectClose(few, array(result.losses));
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
    const { studentHidden: hidden, studentHead: head, rowWeights } = inputs();
    const sampled = ops.linearTokenKl({ ...inputs(), support: "sampled", targets });
    const nll = ops.linearTokenNll({ hidden, head, targets, rowWeights });
    expectClose(array(sampled.losses), array(nll.losses));
    expectClose(array(sampled.gradHead), array(nll.gradHead));
  });

  it("rejects mismatched arguments by name", () => {
    const code = (changes: object) => codeOf(() => ops.linearTokenKl({ ...inputs(), ...changes }));
    expect(code({})).toBe("no error");
    expect(code({ teacherHead: f32(numbers(48, 1), [8, 6]) })).toBe("ERR_SHAPE");
    expect(code({ teacherHidden: f32(numbers(12, 1), [2, 6]) })).toBe("ERR_SHAPE");
    expect(code({ support: "sampled" })).toBe("ERR_VALUE");
    expect(code({ support: { topK: 0 } })).toBe("ERR_VALUE");
    expect(code({ support: "none" })).toBe("ERR_VALUE");
    expect(code({ divergence: "toString" })).toBe("ERR_VALUE");
    expect(code({ divergence: {} })).toBe("ERR_VALUE");
    for (const jensenShannon of [0, 1, Number.NaN]) {
      expect(code({ divergence: { jensenShannon } })).toBe("ERR_VALUE");
    }
    const targets = Tensor.from(BigInt64Array.of(1n, 2n, 8n), [rows]);
    expect(code({ support: "sampled", targets, divergence: "crossEntropy" })).toBe("no error");
    expect(code({ support: "sampled", targets, divergence: "reverseKl" })).toBe("ERR_VALUE");
    expect(code({ support: "sampled", targets, divergence: { jensenShannon: 0.5 } })).toBe("ERR_VALUE");
    expect(code({ temperature: Number.NaN })).toBe("ERR_VALUE");
  });
});
