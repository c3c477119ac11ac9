/**
 * The prioritized sampler with 2^20 leaves, in batches. Indices are random, and every eighth
 * repeats the one before it; 64 batches alternate, so that they are not in the processor's caches.
 * Call k:
 *
 * - set: batch k's priorities, raised to alpha, at batch k's indices; - sample: a batch of draws,
 * with probabilities and importance weights; - cycle: set, then sample. Shows the cost of lazy
 * updates.
 */

import { PrioritizedSampler } from "../../ops/sampler.ts";
import { randomBits, uniform } from "../inputs.ts";
import type { Case, CaseOptions, Job, Row, Subject, Suite } from "../suite.ts";

const batches = 64;
const operations = ["sample", "set", "cycle"] as const;

type Parameters = {
  operation: (typeof operations)[number];
  capacity: number;
  batch: number;
  alpha: number;
  beta: number;
};

export const sampler: Suite = {
  name: "sampler",
  summary: "prioritized sampling, 2^20 leaves: set, sample, and both in turn",

  cases({ device, quick }: CaseOptions): Case[] {
    const capacity = quick ? 2 ** 12 : 2 ** 20;
    const exponent = Math.log2(capacity);
    return (quick ? [64] : [256, 1024, 4096]).flatMap((batch) =>
      operations.map((operation) => {
        const parameters: Parameters = { operation, capacity, batch, alpha: 0.6, beta: 0.4 };
        return {
          id: `${operation}-${batch}`,
          title: `${titles[operation]} · ${batch} at once · 2^${exponent} leaves · alpha ${parameters.alpha}`,
          parameters,
          timing: quick ? { warmup: 2, calls: 10, seconds: 0 } : { warmup: 100, calls: 200, seconds: 0.5 },
          work: { amount: batch, unit: "M/s" as const },
          // Single-precision trees differ in the seventh digit and in duplicates.
          tolerance: 1e-3,
          rows: rows(operation, device),
        };
      }),
    );
  },

  prepare({ implementation, parameters, device }: Job): Subject {
    const { operation, capacity, batch, alpha, beta } = parameters as Parameters;
    const sampler = new PrioritizedSampler({ capacity, alpha, beta, seed: 0, device });
    sampler.set(
      Int32Array.from({ length: capacity }, (_, i) => i),
      positive(1, capacity),
    );
    const drawn = Int32Array.from(randomBits(2, batches * batch), (bits) => bits % capacity);
    for (let i = 7; i < drawn.length; i += 8) drawn[i] = drawn[i - 1]!;
    const priorities = positive(3, batches * batch);
    const part = <T>(array: { subarray(start: number, end: number): T }, k: number) =>
      array.subarray(k * batch, (k + 1) * batch);
    const into = {
      indices: new Int32Array(batch),
      probabilities: new Float32Array(batch),
      weights: new Float32Array(batch),
    };
    const inputs = Array.from({ length: batches }, (_, k) => ({
      indices: part(drawn, k),
      priorities: part(priorities, k),
    }));
    const set = (number: number) => {
      const { indices, priorities } = inputs[number % batches]!;
      sampler.set(indices, priorities);
    };
    const sample = () => sampler.sample(batch, implementation === "into" ? { into } : {});
    const calls = {
      set,
      sample: () => void sample(),
      cycle: (number: number) => {
        set(number);
        sample();
      },
    };
    return { call: calls[operation], check: () => sampler.total() };
  },
};

const titles = {
  sample: "draw",
  set: "set priorities",
  cycle: "set priorities, then draw",
};

function rows(operation: Parameters["operation"], device: string): Row[] {
  const ours = (name: string, implementation: string): Row => ({
    ...{ name, implementation, role: "ours", resultBytes: null },
  });
  const peer = (name: string, implementation: string): Row => ({
    ...{ name, implementation, role: "peer", script: "sampler.py", resultBytes: null },
  });
  return [
    ours("nlac", "new"),
    ...(operation === "set" ? [] : [ours("nlac, into arrays", "into")]),
    peer("torchrl tree, f32", "torchrl-tree-fp32"),
    peer("torchrl tree, f64", "torchrl-tree-fp64"),
    peer("torchrl sampler", "torchrl-sampler"),
    peer("cpprb", "cpprb"),
    peer("sumtree", "sumtree"),
    // Linear in the leaves: on a CPU a hundred times slower than a tree.
    ...(device === "cpu" ? [] : [peer("torch cumsum", "cumsum")]),
  ];
}

/** [count] f32 in (0, 1]. */
function positive(seed: number, count: number): Float32Array {
  return uniform(seed, count).map((value) => 1 - value);
}
