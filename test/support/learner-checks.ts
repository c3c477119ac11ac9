/** Ids, codes and references for tests of a tiny learner. */

import { expect } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { Learner } from "../../lib/learner/learner.ts";
import { logSoftmax, tinyConfig } from "./tiny.ts";

export const vocab = tinyConfig.vocab_size;

export const ids = (text: string) => [...Buffer.from(text)];

export async function codeOf(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    expect(error).toBeInstanceOf(NlacError);
    return (error as NlacError).code;
  }
  return "no error";
}

/** -log p of each token of `response`, from the logits of the whole text. */
export async function referenceNll(model: Learner, prompt: number[], response: number[], weights?: "target") {
  const [logits] = await model.logits([[...prompt, ...response]], weights && { weights });
  return response.map((id, i) => -logSoftmax(logits!, prompt.length + i - 1, vocab)[id]!);
}

export function expectClose(actual: ArrayLike<number>, expected: ArrayLike<number>, within = 1e-4) {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < actual.length; i++) expect(Math.abs(actual[i]! - expected[i]!)).toBeLessThan(within);
}
