/** An ablation: breaks the link between an action and its outcome. */

import { permutation, streams } from "../base/random.ts";
import type { Transition } from "../episodes/trajectory.ts";

/**
 * Gives each transition the outcome of another one, unless there is no other. A transition may be
 * drawn twice: it does not get its own outcome from its copy. Without copies this is a permutation.
 */
export function withShuffledOutcomes(transitions: readonly Transition[], seed: number): Transition[] {
  const order = permutation(transitions.length, seed, streams.shuffle);
  const shuffled = [...transitions];
  for (const [place, i] of order.entries()) {
    const own = transitions[i]!;
    const following = [...order.slice(place + 1), ...order.slice(0, place)].map((j) => transitions[j]!);
    const other = following.find(
      ({ trajectory, turn }) => trajectory !== own.trajectory || turn !== own.turn,
    );
    const { observation, reward, received, terminated, truncated, rest } = other ?? own;
    shuffled[i] = { ...own, observation, reward, received, terminated, truncated, rest };
  }
  return shuffled;
}
