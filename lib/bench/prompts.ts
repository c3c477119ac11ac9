/** Prompts of random ids, equal to those of bench/peers/generation.py. */

import { randomBits } from "./inputs.ts";

export type PromptParameters = {
  /** Number of prefixes, and of prompts per prefix. */
  groups: number;
  texts: number;
  /** Tokens of a prefix, and of the rest of a prompt. */
  shared: number;
  own: number;
};

/** Ids that are ordinary tokens in the vocabularies of this model family. */
const firstId = 1000;
const ids = 40_000;

/**
 * [groups · texts][shared + own] ids; prompts with the same prefix are adjacent.
 *
 * @param sharing false gives every prompt its own prefix
 */
export function prompts({ groups, texts, shared, own }: PromptParameters, sharing = true): number[][] {
  const count = groups * texts;
  const random = (seed: number, length: number) =>
    Array.from(randomBits(seed, length), (bits) => firstId + (bits % ids));
  return Array.from({ length: count }, (_, i) => [
    ...random(sharing ? 1 + Math.floor(i / texts) : 1 + groups + count + i, shared),
    ...random(1 + groups + i, own),
  ]);
}
