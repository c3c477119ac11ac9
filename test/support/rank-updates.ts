/** Updates with the losses of NLAC, PPO and HOPE, for comparisons of several ranks with one learner. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Learner } from "../../lib/learner/learner.ts";
import type { ScoredText } from "../../lib/model/language-model.ts";
import type { DistributedLearner } from "../../lib/ranks/distributed-learner.ts";
import { readSafetensors } from "./safetensors.ts";

type Model = Learner | DistributedLearner;

export const methods = ["nlac", "ppo", "hope"] as const;
export type Method = (typeof methods)[number];

/** Small micro-batches, so that every rank has several. */
export const learnerOptions = { dtype: "float32", seed: 3, heads: "value", microBatchTokens: 64 } as const;

/** `length` ids that every tiny model has. */
export const ids = (length: number, seed: number) =>
  Array.from({ length }, (_, i) => (((i + 1) * 7919 * (seed + 1)) % 70) + 3);

/** Texts of different lengths, others in every update. */
function textsOf(update: number): (ScoredText & { weight: number })[] {
  return Array.from({ length: 7 }, (_, i) => ({
    prompt: ids(5 + 3 * i, 100 * update + i),
    response: ids(4 + i, 100 * update + 20 + i),
    weight: 0.1,
  }));
}

/** The losses, gradient norms and distances that updates `from` … `to` - 1 report, a list each. */
export async function updates(model: Model, method: Method, from: number, to: number): Promise<number[][]> {
  const figures: number[][] = [];
  if (from === 0) {
    await model.updateTarget(1);
    await model.keepReference();
  }
  for (let update = from; update < to; update++) figures.push(await once(model, method, update));
  return figures;
}

async function once(model: Model, method: Method, update: number): Promise<number[]> {
  // With AdamW's usual epsilon, rounding would decide the sign of a whole step where a gradient is
  // nearly 0.
  const step = { learningRate: 3e-4, weightDecay: 0.01, epsilon: 1e-4 };
  const texts = textsOf(update);
  const flat = (lists: readonly ArrayLike<number>[]) => lists.flatMap((list) => Array.from(list));
  if (method === "nlac") {
    const distilled = texts.map(({ prompt, response, weight }, i) => ({
      ...{ student: prompt, teacher: ids(9, 100 * update + 40 + i), response, weight },
    }));
    const l1 = await model.tokenKl(distilled);
    const first = await model.step({ ...step, moments: "critic" });
    const l2 = await model.tokenNll(texts);
    const second = await model.step({ ...step, moments: "policy", targetRate: 0.1 });
    return [...flat(l1), ...flat(l2), first.gradNorm, second.gradNorm, await model.targetDistance()];
  }
  if (method === "ppo") {
    const [logProbs, values] = [await model.logProbs(texts), await model.values(texts)];
    const surrogates = texts.map((text, i) => ({
      ...text,
      oldLogProbs: logProbs[i]!,
      advantages: text.response.map((_, j) => 0.5 - 0.1 * j),
      returns: text.response.map((_, j) => 0.4 + 0.1 * Math.sin(i + j)),
      oldValues: values[i]!,
    }));
    const norms: number[] = [];
    for (let epoch = 0; epoch < 2; epoch++) {
      await model.tokenSurrogate(surrogates, { value: { coefficient: 0.5 } });
      norms.push((await model.step(step)).gradNorm);
    }
    return [...flat(logProbs), ...flat(values), ...norms];
  }
  const reference = await model.logProbs(texts, { weights: "reference" });
  const sums = reference.map((list) => list.reduce((sum, value) => sum + value, 0));
  const pairs = texts.map((chosen, i) => {
    const other = (i + 1) % texts.length;
    const [better, worse] = [chosen.response, texts[other]!.response];
    return {
      chosen: { prompt: chosen.prompt, response: better },
      rejected: { prompt: chosen.prompt, response: worse },
      ...{ referenceChosen: sums[i]!, referenceRejected: sums[other]!, weight: 0.1 },
    };
  });
  const results = await model.tokenPreference(pairs, { beta: 0.1 });
  const actor = await model.step({ ...step, moments: "actor" });
  const judged = texts.map(({ prompt, response }, i) => ({ prompt, response, label: i / 6, weight: 0.1 }));
  const rewardLosses = await model.rewardLoss(judged);
  const reward = await model.step({ ...step, moments: "reward" });
  return [...results.map(({ loss }) => loss), ...rewardLosses, actor.gradNorm, reward.gradNorm];
}

/** The largest |a - b| / max(1, |b|) of two lists of figures of the same sizes. */
export function largestDifference(actual: number[][], expected: number[][]): number {
  const [a, b] = [actual.flat(), expected.flat()];
  if (a.length !== b.length) return Number.POSITIVE_INFINITY;
  return Math.max(...a.map((value, i) => Math.abs(value - b[i]!) / Math.max(1, Math.abs(b[i]!))));
}

const weightFiles = ["model.safetensors", "target.safetensors"];

/** ‖a - b‖ / ‖b‖ of all weights, θ and θ̄, of two checkpoints in float32; the larger of the two. */
export function weightDifference(actual: string, expected: string): number {
  return Math.max(
    ...weightFiles.map((file) => {
      const [a, b] = [actual, expected].map((directory) => readSafetensors(join(directory, file)));
      if (a!.size === 0 || a!.size !== b!.size) return Number.POSITIVE_INFINITY;
      let [difference, norm] = [0, 0];
      for (const [name, { values }] of b!) {
        const others = a!.get(name)!.values;
        for (const [i, value] of values.entries()) {
          difference += (others[i]! - value) ** 2;
          norm += value ** 2;
        }
      }
      return Math.sqrt(difference / norm);
    }),
  );
}

/** The bytes of everything that training changes, by file. */
export function trainedBytes(directory: string): Record<string, Buffer> {
  const moments = [0, 1].map((i) => `optimizer-${i}.safetensors`);
  const present = (file: string) => {
    try {
      return [[file, readFileSync(join(directory, file))]];
    } catch {
      return []; // PPO has one set of moments
    }
  };
  return Object.fromEntries([...weightFiles, "reference.safetensors", ...moments].flatMap(present));
}
