/**
 * Shared by the policy gradients: scores of episodes before the first step on them, and metrics of
 * a step.
 */

import { z } from "zod";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { PolicyGradientModel, SurrogateResult, SurrogateText } from "../model/language-model.ts";
import type { EpisodeText } from "./episode-texts.ts";
import { inGroups } from "./losses.ts";

/**
 * Scores of one sequence under θ before the update, [response tokens]; 0 at tokens that are not the
 * policy's.
 */
export interface Scores {
  oldLogProbs: Float32Array;
  referenceLogProbs?: Float32Array;
  oldValues?: Float32Array;
}

/**
 * Scores as saved in a checkpoint: the bytes of each list in base64, a third of the size of
 * decimals.
 */
export const savedScores = z.strictObject({
  oldLogProbs: z.string(),
  referenceLogProbs: z.string().optional(),
  oldValues: z.string().optional(),
});

export type SavedScores = z.infer<typeof savedScores>;

export function saveScores({ oldLogProbs, referenceLogProbs, oldValues }: Scores): SavedScores {
  const text = (list: Float32Array) =>
    Buffer.from(list.buffer, list.byteOffset, list.byteLength).toString("base64");
  return {
    oldLogProbs: text(oldLogProbs),
    ...(referenceLogProbs === undefined ? {} : { referenceLogProbs: text(referenceLogProbs) }),
    ...(oldValues === undefined ? {} : { oldValues: text(oldValues) }),
  };
}

export function restoreScores({ oldLogProbs, referenceLogProbs, oldValues }: SavedScores): Scores {
  const list = (text: string) => new Float32Array(new Uint8Array(Buffer.from(text, "base64")).buffer);
  return {
    oldLogProbs: list(oldLogProbs),
    ...(referenceLogProbs === undefined ? {} : { referenceLogProbs: list(referenceLogProbs) }),
    ...(oldValues === undefined ? {} : { oldValues: list(oldValues) }),
  };
}

export interface ScoreOptions {
  /** Temperature at which the episodes were sampled. */
  temperature: number;
  /** Whether to compute the reference model's log probabilities. */
  reference: boolean;
  /** Whether to compute the value head's predictions. */
  values: boolean;
  signal: AbortSignal;
}

/** Throws ERR_ABORTED. */
export async function scoreEpisodes(
  model: PolicyGradientModel,
  texts: readonly EpisodeText[],
  { temperature, reference, values, signal }: ScoreOptions,
): Promise<Scores[]> {
  const logProbs = (weights: "online" | "reference") =>
    inGroups(texts, signal, (group) => model.logProbs(group, { weights, temperature }));
  const old = await logProbs("online");
  const referred = reference ? await logProbs("reference") : undefined;
  const valued = values ? await inGroups(texts, signal, (group) => model.values(group)) : undefined;
  return texts.map((_, i) => ({
    oldLogProbs: old[i]!,
    ...(referred === undefined ? {} : { referenceLogProbs: referred[i]! }),
    ...(valued === undefined ? {} : { oldValues: valued[i]! }),
  }));
}

/**
 * The scores of an episode's sequences, with the weights that generated each token as the old
 * policy: their log probabilities, as recorded, at temperature 1. Tokens without them (their text
 * was redacted) keep their score.
 *
 * @param turns the episode's turns, those of the sequences in order
 */
export function withRecordedPolicy(
  scores: readonly Scores[],
  texts: readonly EpisodeText[],
  turns: Trajectory["turns"],
): Scores[] {
  let turn = 0;
  return texts.map((text, i) => {
    const oldLogProbs = scores[i]!.oldLogProbs.slice();
    for (const { start } of text.turns)
      for (const [t, logProb] of turns[turn++]!.logProbs.entries())
        if (Number.isFinite(logProb)) oldLogProbs[start + t] = logProb;
    return { ...scores[i]!, oldLogProbs };
  });
}

/** Groups `scores`, those of the sequences of all samples in order, by sample. */
export function perSample(
  samples: readonly { texts: readonly EpisodeText[] }[],
  scores: readonly Scores[],
): Scores[][] {
  let end = 0;
  return samples.map(({ texts }) => {
    const own = scores.slice(end, end + texts.length);
    end += texts.length;
    return own;
  });
}

/**
 * Means over the policy's tokens, and the loss of the step. Names as in TRL.
 * @param texts the sequences with their token weights, as used in the step
 */
export function surrogateMetrics(
  texts: readonly SurrogateText[],
  results: readonly SurrogateResult[],
): Record<string, number> {
  let tokens = 0;
  const sums = { loss: 0, entropy: 0, low: 0, high: 0, approximateKl: 0, kl: 0 };
  for (const [i, { weight, referenceLogProbs }] of texts.entries()) {
    const { losses, logProbs, entropies, ratios, clipped } = results[i]!;
    for (let t = 0; t < losses.length; t++) {
      const share = (weight as ArrayLike<number>)[t]!;
      if (share === 0) continue;
      tokens++;
      sums.loss += share * losses[t]!;
      sums.entropy += entropies[t]!;
      sums.low += clipped[t]! < 0 ? 1 : 0;
      sums.high += clipped[t]! > 0 ? 1 : 0;
      sums.approximateKl += ratios[t]! - 1 - Math.log(ratios[t]!);
      if (referenceLogProbs !== undefined) sums.kl += klEstimate(referenceLogProbs[t]! - logProbs[t]!);
    }
  }
  return {
    "loss/policy": sums.loss,
    entropy: sums.entropy / tokens,
    "clip_ratio/low_mean": sums.low / tokens,
    "clip_ratio/high_mean": sums.high / tokens,
    "clip_ratio/region_mean": (sums.low + sums.high) / tokens,
    approx_kl: sums.approximateKl / tokens,
    ...(texts.some(({ referenceLogProbs }) => referenceLogProbs !== undefined)
      ? { kl: sums.kl / tokens }
      : {}),
    "tokens/policy": tokens,
    "tokens/gradient": tokens,
  };
}

/**
 * exp(d) - d - 1, d = log q - log p at a sample of p: a non-negative estimate of KL(p ‖ q)
 * (Schulman, 2020).
 */
function klEstimate(difference: number): number {
  return Math.expm1(difference) - difference;
}
