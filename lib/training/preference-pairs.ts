/**
 * Pairs of a better and a worse text from recorded episodes, and the DPO loss on a batch of pairs.
 */

import { getOrAdd } from "../base/get-or-add.ts";
import { derivedSeed, permutation, streams } from "../base/random.ts";
import { isFaulty, rewardRounding, type Trajectory } from "../episodes/trajectory.ts";
import type {
  PreferenceLoss,
  PreferenceModel,
  PreferencePair,
  PreferenceResult,
  ScoredText,
} from "../model/language-model.ts";
import type { SampleRecord } from "../run/samples.ts";
import { mean } from "../statistics/mean.ts";
import { episodeTexts } from "./episode-texts.ts";
import { inGroups } from "./losses.ts";
import { type ActionValue, keyOf } from "./returns.ts";

/** A preferred text and a rejected one after the same prompt. */
export interface Pair {
  chosen: ScoredText;
  rejected: ScoredText;
  /** Difference of their returns, or of their scores; above 0. */
  gap: number;
  /** The episode of the preferred text; its turn unless the text is a whole episode. */
  trajectory: number;
  turn?: number;
}

export interface PairOptions {
  /** Maximum pairs of one opening of a task, or of one state. */
  perGroup: number;
  /** Minimum difference of returns. */
  minGap: number;
  seed: number;
}

/**
 * Pairs of whole episodes on the same task with the same opening, the one with the higher reward
 * preferred. (If the environment draws the opening, DPO's derivation holds only for equal ones.) The
 * tokens of the environment have weight 0. Episodes that ended in a fault, and episodes of several
 * texts (the template drops earlier reasoning), are left out.
 */
export function episodePairs(trajectories: Iterable<Trajectory>, options: PairOptions): Pair[] {
  const byOpening = new Map<string, { text: ScoredText; value: number; trajectory: number }[]>();
  for (const trajectory of trajectories) {
    if (isFaulty(trajectory)) continue;
    const [text, ...more] = episodeTexts(trajectory);
    if (text === undefined || more.length > 0) continue;
    const key = `${keyOf(text.prompt)} ${trajectory.task}`;
    const group = getOrAdd(byOpening, key, () => []);
    group.push({ text, value: trajectory.reward, trajectory: trajectory.id });
  }
  return [...byOpening.values()].flatMap((group, i) => pairsOf(group, options, i));
}

/** Pairs of actions in the same state, the one with the higher Q̂ preferred. */
export function actionPairs(values: readonly ActionValue[], options: PairOptions): Pair[] {
  const byState = new Map<string, { text: ScoredText; value: number; trajectory: number; turn: number }[]>();
  for (const { state, action, value, trajectory, turn } of values) {
    const text = { prompt: state.prompt(), response: action, weight: 1 };
    const group = getOrAdd(byState, keyOf(state.tokens), () => []);
    group.push({ text, value, trajectory: trajectory.id, turn });
  }
  return [...byState.values()].flatMap((group, i) => pairsOf(group, options, i));
}

/** Up to `perGroup` random pairs whose values differ, by at least `minGap`. */
function pairsOf(
  group: readonly { text: ScoredText; value: number; trajectory: number; turn?: number }[],
  { perGroup, minGap, seed }: PairOptions,
  number: number,
): Pair[] {
  const pairs: Pair[] = [];
  const order = permutation(group.length, derivedSeed(seed, streams.pair, number), streams.pair);
  for (let distance = 1; distance < group.length; distance++) {
    for (let i = 0; i + distance < group.length; i++) {
      if (pairs.length >= perGroup) return pairs;
      const a = group[order[i]!]!;
      const b = group[order[i + distance]!]!;
      const gap = Math.abs(a.value - b.value);
      if (gap <= rewardRounding || gap < minGap - rewardRounding) continue;
      const [better, worse] = a.value > b.value ? [a, b] : [b, a];
      const { text: chosen, trajectory, turn } = better;
      pairs.push({ chosen, rejected: worse.text, gap, trajectory, ...(turn === undefined ? {} : { turn }) });
    }
  }
  return pairs;
}

export interface PreferenceStep {
  beta: number;
  loss: PreferenceLoss;
  labelSmoothing: number;
}

/**
 * Accumulates the gradient of the mean loss over `pairs`, with the stored reference.
 * @returns the results in order, and metrics with names as in TRL
 */
export async function preferenceGradient(
  model: PreferenceModel,
  pairs: readonly Pair[],
  { beta, loss, labelSmoothing }: PreferenceStep,
  signal: AbortSignal,
): Promise<{ results: PreferenceResult[]; metrics: Record<string, number> }> {
  const texts = pairs.flatMap(({ chosen, rejected }) => [chosen, rejected]);
  const referred = await inGroups(texts, signal, (group) => model.logProbs(group, { weights: "reference" }));
  const sums = referred.map((logProbs) => logProbs.reduce((sum, value) => sum + value, 0));
  const weighted = pairs.map(({ chosen, rejected }, i): PreferencePair & ScoredText => ({
    chosen,
    rejected,
    referenceChosen: sums[2 * i]!,
    referenceRejected: sums[2 * i + 1]!,
    weight: 1 / pairs.length,
    // The size of a pair, by which `inGroups` forms groups.
    prompt: [...chosen.prompt, ...chosen.response],
    response: [...rejected.prompt, ...rejected.response],
  }));
  const results = await inGroups(weighted, signal, (group) =>
    model.tokenPreference(
      group.map(({ prompt, response, ...pair }) => pair),
      { beta, loss, labelSmoothing },
    ),
  );
  const tokens = texts.reduce((sum, text) => sum + lossTokens(text), 0);
  return {
    results,
    metrics: {
      "loss/preference": mean(results.map(({ loss }) => loss)),
      "rewards/chosen": mean(results.map(({ chosenReward }) => chosenReward)),
      "rewards/rejected": mean(results.map(({ rejectedReward }) => rejectedReward)),
      "rewards/margins": mean(results.map((result) => result.chosenReward - result.rejectedReward)),
      "rewards/accuracies": mean(
        results.map(({ chosenReward, rejectedReward }) => (chosenReward > rejectedReward ? 1 : 0)),
      ),
      "logps/chosen": mean(results.map(({ chosenLogProb }) => chosenLogProb)),
      "logps/rejected": mean(results.map(({ rejectedLogProb }) => rejectedLogProb)),
      "tokens/preference": tokens,
      "tokens/gradient": tokens,
    },
  };
}

/** Tokens of the response that the loss contains: those of the environment have weight 0. */
function lossTokens({ response, weight = 1 }: ScoredText): number {
  if (typeof weight === "number") return response.length;
  return response.filter((_, t) => weight[t] !== 0).length;
}

/** Sample records of pairs on which an update took its step. */
export function pairSamples(
  model: Pick<PreferenceModel, "decode">,
  update: number,
  pairs: readonly Pair[],
  results: readonly PreferenceResult[],
): SampleRecord[] {
  return pairs.map(({ chosen, rejected, gap, trajectory, turn }, i) => ({
    ...{ update, trajectory, ...(turn === undefined ? {} : { turn }) },
    texts: {
      chosen: model.decode(chosen.response),
      rejected: model.decode(rejected.response),
    },
    facts: { gap, loss: results[i]!.loss },
  }));
}
