/** An ablation: breaks the link between an action and its outcome. */

import { permutation, streams } from "../base/random.ts";
import type { Transition } from "../episodes/trajectory.ts";

/** Permutes the outcomes so that no transition keeps its own, unless there is only one. */
export function withShuffledOutcomes(transitions: readonly Transition[], seed: number): Transition[] {
  const order = permutation(transitions.length, seed, streams.shuffle);
  const shuffled = [...transitions];
  for (const [place, i] of order.entries()) {
    const { observation, reward, received, terminated, truncated, rest } =
      transitions[order[(place + 1) % order.length]!]!;
    shuffled[i] = { ...transitions[i]!, observation, reward, received, terminated, truncated, rest };
  }
  return shuffled;
}
