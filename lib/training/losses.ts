/** What training and evaluation share where they take losses. */

import { throwIfAborted } from "../base/errors.ts";
import type { DistilledText, ScoredText, Support } from "../model/language-model.ts";

/**
 * Where L1 is taken. A corrected thought is not a text that the teacher's distribution belongs to: a reasoning
 * model gets the sampled token's cross entropy instead of the KL.
 */
export function supportOf(config: { reasoning: boolean; support: Support }): Support {
  return config.reasoning ? "sampled" : config.support;
}

/** Tokens that are sent to the learner at once: about one of its micro batches. */
const groupTokens = 2048;

/**
 * What `compute` gives for each of `texts`, a few texts at a time so that a stop is heard within seconds. Gradients add up
 * over the calls: how a batch is cut changes nothing but their rounding. What is in memory at once is the learner's own
 * matter: it cuts a call into passes of its `microBatchTokens`. Throws ERR_ABORTED.
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
