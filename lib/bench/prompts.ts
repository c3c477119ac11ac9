/** Prompts of random ids, as bench/peers/generation.py makes them too. */

import { randomBits } from "./inputs.ts";

export type PromptParameters = {
  /** Beginnings, and texts on each. */
  groups: number;
  texts: number;
  /** Tokens of a beginning, and of what a text adds to it. */
  shared: number;
  own: number;
};

/** Ids that are words in every vocabulary of the model's family. */
const firstId = 1000;
const ids = 40_000;

/**
 * [groups · texts][shared + own] ids, those on one beginning together.
 *
 * @param sharing false gives every text a beginning of its own
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
