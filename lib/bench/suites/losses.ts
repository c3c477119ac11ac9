/**
 * Token losses fused with the vocabulary matrix, from hidden states to the gradients of both: the
 * mean loss of all rows, forward and backward, in one call. Weights are scaled so that logits have
 * a standard deviation of about 2.5.
 */

import { type LossTensors, ops, Tensor } from "../../ops/index.ts";
import { randomBits, spreadTensor } from "../inputs.ts";
import type { Case, CaseOptions, Job, Row, Subject, Suite } from "../suite.ts";

type Dtype = "bfloat16" | "float32";

type Parameters = {
  loss: "kl" | "nll";
  rows: number;
  width: number;
  vocabulary: number;
  dtype: Dtype;
  weightScale: number;
  /** Weight of the teacher in a generalized Jensen-Shannon divergence; 0 is the forward KL. */
  beta: number;
  /** If set: the KL over the teacher's top k tokens and the remaining probability mass. */
  topK: number | null;
  /** Bytes of logits for the implementation "small": an eighth of all logits in float32. */
  smallWorkspace: number;
  /** Rows per chunk of the chunked library. */
  chunk: number;
  /** Whether the limit's products have float32 results, if torch supports it. */
  wideProducts: boolean;
};

type Kind = { id: string; title: string } & Pick<Parameters, "loss" | "beta" | "topK">;

const kl: Kind = {
  id: "kl",
  title: "KL(teacher ‖ student), full vocabulary",
  loss: "kl",
  beta: 0,
  topK: null,
};
const nll: Kind = { id: "nll", title: "negative log-likelihood", loss: "nll", beta: 0, topK: null };
const topK: Kind = { ...kl, id: "kl-top64", title: "KL(teacher ‖ student), top 64 and the rest", topK: 64 };
const jsd: Kind = {
  ...kl,
  id: "jsd",
  title: "Jensen-Shannon divergence, β = 0.5, full vocabulary",
  beta: 0.5,
};

export const losses: Suite = {
  name: "losses",
  summary: "token KL and NLL fused with the vocabulary matrix, forward and backward",

  cases({ device, quick }: CaseOptions): Case[] {
    const timing = { warmup: 1, calls: quick ? 2 : 3, seconds: quick ? 0 : 1 };
    const make = (
      kind: Kind,
      rows: number,
      width: number,
      vocabulary: number,
      dtype: Dtype = "bfloat16",
    ): Case => {
      const { id, title, ...what } = kind;
      const parameters: Parameters = {
        ...what,
        ...{ rows, width, vocabulary, dtype, weightScale: 7.5 / Math.sqrt(width) },
        ...{ smallWorkspace: (rows * vocabulary * 4) / 8, chunk: Math.ceil(rows / 8), wideProducts: true },
      };
      return {
        id: `${id}-${rows}x${width}x${vocabulary}-${dtype}`,
        title: `${title} · ${rows} rows × ${width} × ${vocabulary} · ${dtype}`,
        parameters,
        timing,
        work: { amount: 2 * (kind.loss === "nll" ? 3 : 4) * rows * width * vocabulary, unit: "TFLOP/s" },
        tolerance: 0.01,
        rows: rowsOf(kind, parameters, device),
      };
    };
    if (quick)
      return [
        ...[kl, nll, topK, jsd].map((kind) => make(kind, 32, 64, 1000)),
        make(kl, 32, 64, 1000, "float32"),
      ];
    // A processor without products of bfloat16 may be faster in float32, and torch always is.
    if (device === "cpu")
      return [
        ...[kl, nll, topK, jsd].map((kind) => make(kind, 1024, 576, 49152)),
        ...[kl, nll].map((kind) => make(kind, 1024, 576, 49152, "float32")),
      ];
    return [
      ...[kl, nll].map((kind) => make(kind, 8192, 3584, 152064)),
      ...[kl, nll, topK, jsd].map((kind) => make(kind, 4096, 3584, 152064)),
    ];
  },

  prepare({ implementation, parameters, device }: Job): Subject {
    const given = parameters as Parameters;
    const { loss, rows, width, vocabulary, dtype, weightScale, topK, beta } = given;
    const workspaceBytes = implementation === "small" ? given.smallWorkspace : undefined;
    const rowWeights = Tensor.from(new Float32Array(rows).fill(1 / rows), [rows], { device });
    const hidden = (seed: number) => spreadTensor(seed, [rows, width], 1, dtype, device);
    const matrix = (seed: number) => spreadTensor(seed, [vocabulary, width], weightScale, dtype, device);
    let mean = Number.NaN;
    const finish = (result: LossTensors) => {
      // Reading the losses waits for the device.
      const values = result.losses.toArray() as Float32Array;
      if (Number.isNaN(mean)) mean = values.reduce((sum, value) => sum + value, 0) / rows;
      for (const tensor of Object.values(result)) tensor.dispose();
    };
    const check = () => mean;
    if (loss === "nll") {
      const ids = BigInt64Array.from(randomBits(5, rows), (bits) => BigInt(bits % vocabulary));
      const targets = Tensor.from(ids, [rows], { device });
      const inputs = { hidden: hidden(1), head: matrix(2), targets, rowWeights, workspaceBytes };
      return { call: () => finish(ops.linearTokenNll(inputs)), check };
    }
    const inputs = {
      ...{ studentHidden: hidden(1), studentHead: matrix(2), rowWeights },
      ...{ teacherHidden: hidden(3), teacherHead: matrix(4), workspaceBytes },
      support: topK === null ? ("full" as const) : { topK },
      divergence: beta === 0 ? ("forwardKl" as const) : { jensenShannon: beta },
    };
    return { call: () => finish(ops.linearTokenKl(inputs)), check };
  },
};

function rowsOf(kind: Kind, { rows, width, vocabulary, dtype }: Parameters, device: string): Row[] {
  const bytes = dtype === "bfloat16" ? 2 : 4;
  const row = (role: Row["role"], name: string, implementation: string, elementBytes: number): Row => ({
    ...{ role, name, implementation },
    script: role === "ours" ? undefined : role === "limit" ? "limits.py" : "losses.py",
    // Gradients of the hidden states, in their type, and of the matrix.
    resultBytes: rows * width * bytes + vocabulary * width * elementBytes,
  });
  const peer = (name: string, implementation: string) => row("peer", name, implementation, bytes);
  const fused =
    kind.topK !== null
      ? []
      : [
          peer(kind.loss === "nll" ? "TRL chunked log-probs" : "TRL chunked divergence", "trl"),
          peer(kind.loss === "nll" ? "Liger fused CE" : "Liger fused JSD", "liger"),
          ...(kind.loss === "nll"
            ? [
                peer("cut cross entropy", "cut"),
                peer("QuACK chunked CE", "quack"),
                peer("torch linear CE", "linear"),
              ]
            : [peer("Liger chunked JSD", "liger-chunked")]),
        ];
  return [
    row("ours", "nlac", "fused", 4),
    // On CUDA the default is smaller.
    ...(device === "cpu" ? [row("ours", "nlac, 1/8 of logits", "small", 4)] : []),
    peer("torch eager", "eager"),
    peer("torch eager, 8 chunks", "eager-chunked"),
    ...(kind.topK === null ? [peer("torch.compile", "compiled")] : []),
    ...fused,
    { ...row("limit", `the ${kind.loss === "nll" ? 3 : 4} products alone`, "products", 0), resultBytes: 0 },
  ];
}
