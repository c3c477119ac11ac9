#!/usr/bin/env node
// Prints a table of the errors of token losses and their gradients relative to float64.
//
//   npm run build && node scripts/loss-accuracy.mjs [--device cuda]
//
// Each loss runs on the same random rows in float32 and in bfloat16, and is compared with its
// formula in float64 on exactly the numbers in the tensors.
import { parseArgs } from "node:util";
import { spread } from "../dist/bench/inputs.js";
import { ops, Tensor } from "../dist/ops/index.js";

const { device } = parseArgs({ options: { device: { type: "string", default: "cpu" } } }).values;

const [rows, width, vocabulary] = [64, 96, 5003];
const temperature = 0.9;
const zLoss = 0.01;
const entropyCoefficient = 0.05;
const beta = 0.5;
const topK = 64;
const clip = { clipLow: 0.2, clipHigh: 0.28, klCoefficient: 0.04 };

const given = {
  student: spread(1, rows * width, 1),
  studentMatrix: spread(2, vocabulary * width, 7.5 / Math.sqrt(width)),
  teacher: spread(3, rows * width, 1),
  teacherMatrix: spread(4, vocabulary * width, 7.5 / Math.sqrt(width)),
  rowWeights: Float32Array.from({ length: rows }, (_, i) => (i % 7 === 3 ? 0 : (1 + (i % 3)) / rows)),
  targets: BigInt64Array.from({ length: rows }, (_, i) => BigInt((i * 7919) % vocabulary)),
  advantages: spread(5, rows, 2),
  oldNoise: spread(6, rows, 0.5),
  referenceNoise: spread(7, rows, 1),
};

/** log softmax(hidden · matrixᵀ / temperature) of a row, and the log of its normaliser. */
function distribution(hidden, matrix, row) {
  const logits = Float64Array.from({ length: vocabulary }, (_, token) => {
    let sum = 0;
    for (let k = 0; k < width; k++) sum += hidden[row * width + k] * matrix[token * width + k];
    return sum / temperature;
  });
  const largest = logits.reduce((a, b) => Math.max(a, b));
  const logSum = largest + Math.log(logits.reduce((sum, x) => sum + Math.exp(x - largest), 0));
  return { logProbs: logits.map((x) => x - logSum), logSum };
}

const total = (values, term) => values.reduce((sum, value, i) => sum + term(value, i), 0);

// Each entry: the call, and a row's loss with its gradient at the logits / temperature. q is the
// student, p the teacher, both as log probabilities, y the target.
const losses = {
  NLL: {
    call: (tensors) => ops.linearTokenNll(ofTargets(tensors)),
    of: ({ q, y }) => [-q[y], q.map((lq, j) => Math.exp(lq) - (j === y))],
  },
  "NLL, z-loss, entropy": {
    call: (tensors) => ops.linearTokenNll({ ...ofTargets(tensors), zLoss, entropyCoefficient }),
    of: ({ q, y, logSum }) => {
      const entropy = -total(q, (lq) => Math.exp(lq) * lq);
      return [
        -q[y] + zLoss * logSum ** 2 - entropyCoefficient * entropy,
        q.map((lq, j) => {
          const prob = Math.exp(lq);
          return prob * (1 + 2 * zLoss * logSum + entropyCoefficient * (lq + entropy)) - (j === y);
        }),
      ];
    },
  },
  "clipped surrogate with KL": {
    call: (tensors) =>
      ops.linearTokenSurrogate({
        ...ofTargets(tensors),
        ...clip,
        oldLogProbs: tensors.oldLogProbs,
        referenceLogProbs: tensors.referenceLogProbs,
        advantages: tensors.advantages,
      }),
    of: ({ q, y, advantage, oldLogProb, referenceLogProb }) => {
      const ratio = Math.exp(q[y] - oldLogProb);
      const free = ratio * advantage;
      const held = Math.min(Math.max(ratio, 1 - clip.clipLow), 1 + clip.clipHigh) * advantage;
      const away = referenceLogProb - q[y];
      const slope = (free <= held ? -free : 0) + clip.klCoefficient * (1 - Math.exp(away));
      return [
        -Math.min(free, held) + clip.klCoefficient * (Math.exp(away) - away - 1),
        q.map((lq, j) => slope * ((j === y) - Math.exp(lq))),
      ];
    },
  },
  "KL(teacher ‖ student)": {
    call: (tensors) => ops.linearTokenKl(ofTeacher(tensors)),
    of: ({ p, q }) => [total(p, (lp, j) => Math.exp(lp) * (lp - q[j])), towards(p, q)],
  },
  "its cross entropy": {
    call: (tensors) => ops.linearTokenKl({ ...ofTeacher(tensors), divergence: "crossEntropy" }),
    of: ({ p, q }) => [-total(p, (lp, j) => Math.exp(lp) * q[j]), towards(p, q)],
  },
  "KL, top 64 and the rest": {
    call: (tensors) => ops.linearTokenKl({ ...ofTeacher(tensors), support: { topK } }),
    of: ({ p, q }) => {
      const kept = new Set(
        Array.from(p.keys())
          .sort((a, b) => p[b] - p[a])
          .slice(0, topK),
      );
      const rest = (values) => total(values, (value, j) => (kept.has(j) ? 0 : Math.exp(value)));
      const [restP, restQ] = [rest(p), rest(q)];
      return [
        total(p, (lp, j) => (kept.has(j) ? Math.exp(lp) * (lp - q[j]) : 0)) + restP * Math.log(restP / restQ),
        q.map(
          (lq, j) =>
            Math.exp(lq) * (kept.has(j) ? 1 : 1 - restP / restQ) - (kept.has(j) ? Math.exp(p[j]) : 0),
        ),
      ];
    },
  },
  "KL(student ‖ teacher)": {
    call: (tensors) => ops.linearTokenKl({ ...ofTeacher(tensors), divergence: "reverseKl" }),
    of: ({ p, q }) => {
      const loss = total(q, (lq, j) => Math.exp(lq) * (lq - p[j]));
      return [loss, q.map((lq, j) => Math.exp(lq) * (lq - p[j] - loss))];
    },
  },
  "Jensen-Shannon, β = 0.5": {
    call: (tensors) => ops.linearTokenKl({ ...ofTeacher(tensors), divergence: { jensenShannon: beta } }),
    of: ({ p, q }) => {
      const m = q.map((lq, j) => Math.log(beta * Math.exp(p[j]) + (1 - beta) * Math.exp(lq)));
      const own = q.map((lq, j) => (1 - beta) * (lq - m[j]));
      const mean = total(q, (lq, j) => Math.exp(lq) * own[j]);
      return [
        beta * total(p, (lp, j) => Math.exp(lp) * (lp - m[j])) + mean,
        q.map((lq, j) => Math.exp(lq) * (own[j] - mean)),
      ];
    },
  },
};

function towards(p, q) {
  return q.map((lq, j) => Math.exp(lq) - Math.exp(p[j]));
}

function ofTargets({ student, studentMatrix, targets, rowWeights }) {
  return { hidden: student, head: studentMatrix, targets, rowWeights, temperature };
}

function ofTeacher({ student, studentMatrix, teacher, teacherMatrix, rowWeights }) {
  const hidden = { studentHidden: student, teacherHidden: teacher };
  return { ...hidden, studentHead: studentMatrix, teacherHead: teacherMatrix, rowWeights, temperature };
}

/** Weighted sums over rows of {loss, gradients of hidden states and matrix} in float64. */
function reference(loss, { student, studentMatrix }, rowsOf) {
  const results = { losses: new Float64Array(rows), gradHidden: new Float64Array(rows * width) };
  const gradHead = new Float64Array(vocabulary * width);
  for (let row = 0; row < rows; row++) {
    const weight = given.rowWeights[row];
    if (weight === 0) continue;
    const [value, slopes] = loss.of(rowsOf[row]);
    results.losses[row] = value;
    for (let token = 0; token < vocabulary; token++) {
      const slope = (weight * slopes[token]) / temperature;
      for (let k = 0; k < width; k++) {
        results.gradHidden[row * width + k] += slope * studentMatrix[token * width + k];
        gradHead[token * width + k] += slope * student[row * width + k];
      }
    }
  }
  return { ...results, gradHead };
}

const norm = (values) => Math.sqrt(total(values, (value) => value ** 2));
const away = (tensor, expected) => Float64Array.from(tensor.toArray(), (value, i) => value - expected[i]);

function measure(dtype) {
  const tensor = (data, shape, options = {}) => Tensor.from(data, shape, { device, ...options });
  const tensors = {
    student: tensor(given.student, [rows, width], { dtype }),
    studentMatrix: tensor(given.studentMatrix, [vocabulary, width], { dtype }),
    teacher: tensor(given.teacher, [rows, width], { dtype }),
    teacherMatrix: tensor(given.teacherMatrix, [vocabulary, width], { dtype }),
    rowWeights: tensor(given.rowWeights, [rows]),
    targets: tensor(given.targets, [rows]),
    advantages: tensor(given.advantages, [rows]),
  };
  // The numbers in the tensors, after rounding.
  const held = Object.fromEntries(Object.entries(tensors).map(([name, value]) => [name, value.toArray()]));
  const rowsOf = Array.from({ length: rows }, (_, row) => {
    const { logProbs: q, logSum } = distribution(held.student, held.studentMatrix, row);
    const { logProbs: p } = distribution(held.teacher, held.teacherMatrix, row);
    const y = Number(given.targets[row]);
    const oldLogProb = Math.fround(q[y] + given.oldNoise[row]);
    const referenceLogProb = Math.fround(q[y] + given.referenceNoise[row]);
    return { p, q, y, logSum, oldLogProb, referenceLogProb, advantage: given.advantages[row] };
  });
  const column = (name) =>
    tensor(
      Float32Array.from(rowsOf, (row) => row[name]),
      [rows],
    );
  Object.assign(tensors, {
    oldLogProbs: column("oldLogProb"),
    referenceLogProbs: column("referenceLogProb"),
  });
  return Object.values(losses).map((loss) => {
    const expected = reference(loss, held, rowsOf);
    const actual = loss.call(tensors);
    return [
      Math.max(...away(actual.losses, expected.losses).map(Math.abs)),
      norm(away(actual.gradHidden, expected.gradHidden)) / norm(expected.gradHidden),
      norm(away(actual.gradHead, expected.gradHead)) / norm(expected.gradHead),
    ];
  });
}

const columns = ["float32", "bfloat16"].map(measure);
const titles = ["losses", "gradient of hidden states", "of the matrix"];
console.log(
  `| | ${["float32", "bfloat16"].flatMap((dtype) => titles.map((title, i) => (i === 0 ? `${dtype}: ${title}` : title))).join(" | ")} |`,
);
console.log(`| --- |${" ---: |".repeat(6)}`);
for (const [i, name] of Object.keys(losses).entries()) {
  const figures = columns.flatMap((rowsOf) => rowsOf[i].map((error) => error.toExponential(1)));
  console.log(`| ${name} | ${figures.join(" | ")} |`);
}
