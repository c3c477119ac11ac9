/** How scripted players of guessing games choose their questions, and talk about what is possible. */

import { listed } from "./listed.ts";

/** Bits of an answer, by the number of equally likely things that have each answer. */
export function entropy(counts: readonly number[]): number {
  const all = counts.reduce((sum, count) => sum + count, 0);
  let bits = 0;
  for (const count of counts) if (count > 0) bits -= (count / all) * Math.log2(count / all);
  return bits;
}

/**
 * One of the questions whose information is at least `share` of the best one's; undefined if no
 * question tells anything.
 *
 * @param random in [0, 1); 0 is the best question
 */
export function chooseQuestion<Name>(
  questions: readonly Name[],
  information: (question: Name) => number,
  share: number,
  random: number,
): Name | undefined {
  const rated = questions
    .map((question) => ({ question, bits: information(question) }))
    .sort((a, b) => b.bits - a.bits);
  const best = rated[0];
  if (best === undefined || best.bits < 1e-9) return undefined;
  const good = rated.filter(({ bits }) => bits >= share * best.bits);
  return good[Math.floor(random * good.length)]!.question;
}

/**
 * "Oslo, Rome, Tunis or one of 15 others": three names, spread over the list, whose neighbours may be
 * alike. "anything" for an empty list.
 *
 * @param other the end of a list of four names
 */
export function alternatives(names: readonly string[], other: string): string {
  const count = Math.min(3, names.length);
  const some = Array.from({ length: count }, (_, i) => names[Math.floor((i * names.length) / count)]!);
  const others = names.length - count;
  if (others > 0) some.push(others === 1 ? other : `one of ${others} others`);
  return listed(some, "or") || "anything";
}
