/** Loss computations shared by training and evaluation. */

import { throwIfAborted } from "../base/errors.ts";
import type {
  DistilledText,
  KlDetail,
  LanguageModel,
  ScoredText,
  Support,
  TokenKlOptions,
} from "../model/language-model.ts";

/**
 * Where L1 is computed. A corrected thought was not sampled from the teacher's distribution, so
 * reasoning models use the cross entropy of the target's tokens instead of the KL.
 */
export function supportOf(config: { reasoning: boolean; support: Support }): Support {
  return config.reasoning ? "sampled" : config.support;
}

/**
 * L1 per token of each of `texts`, [response tokens], and with `detail` both models' probabilities.
 * Gradients accumulate as in `inGroups`. Throws ERR_ABORTED.
 */
export async function criticLosses(
  model: Pick<LanguageModel, "tokenKl">,
  texts: readonly DistilledText[],
  signal: AbortSignal,
  { detail, ...options }: TokenKlOptions & { detail?: number | undefined },
): Promise<{ losses: Float32Array[]; details: KlDetail[] }> {
  if (detail === undefined) {
    const losses = await inGroups(texts, signal, (group) => model.tokenKl(group, options));
    return { losses, details: [] };
  }
  const details = await inGroups(texts, signal, (group) => model.tokenKl(group, { ...options, detail }));
  return { losses: details.map(({ losses }) => losses), details };
}

/** Tokens per call of the learner: about one of its micro-batches. */
const groupTokens = 2048;

/**
 * Returns `compute` of each of `texts`, computed in small groups so that a stop takes effect within
 * seconds. Gradients accumulate over the calls; the grouping affects only their rounding. The
 * learner bounds memory: it splits a call into passes of `microBatchTokens`. Throws
 * ERR_ABORTED.
 */
export async function inGroups<T extends ScoredText | DistilledText, Result>(
  texts: readonly T[],
  signal: AbortSignal,
  compute: (group: T[]) => Promise<Result[]>,
): Promise<Result[]> {
  const all: Result[] = [];
  const length = (text: T) =>
    text.response.length + ("prompt" in text ? text.prompt.length : text.student.length);
  for (let start = 0; start < texts.length; ) {
    throwIfAborted(signal);
    let end = start + 1;
    let tokens = length(texts[start]!);
    while (end < texts.length && tokens + length(texts[end]!) <= groupTokens) tokens += length(texts[end++]!);
    all.push(...(await compute(texts.slice(start, end))));
    start = end;
  }
  return all;
}
