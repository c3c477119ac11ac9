/** Chooses the turns of episodes at which other actions are tried (HOPE, algorithm 2, line 4). */

import { derivedSeed, permutation, streams } from "../base/random.ts";
import { isFaulty, type Trajectory } from "../episodes/trajectory.ts";
import type { Place } from "../roles/hindsight-proposer.ts";
import type { HopeConfig } from "./hope-config.ts";

/**
 * Turns of `branchedEpisodes` episodes of each task, at random.
 * @param episodes `episodesPerTask` consecutive ones per task
 */
export function branchPlaces(episodes: readonly Trajectory[], config: HopeConfig): Place[] {
  const { episodesPerTask, branchedEpisodes, branchRange, turnsPerEpisode, seed } = config;
  const places: Place[] = [];
  for (let start = 0; start < episodes.length; start += episodesPerTask) {
    const ofTask = episodes.slice(start, start + episodesPerTask);
    const usable = ofTask.filter((trajectory) => !isFaulty(trajectory));
    const own = derivedSeed(seed, streams.proposal, ofTask[0]!.id);
    for (const i of permutation(usable.length, own, streams.proposal).slice(0, branchedEpisodes)) {
      const trajectory = usable[i]!;
      const drawn = derivedSeed(seed, streams.shuffle, trajectory.id);
      for (const turn of branchTurns(trajectory.turns.length, branchRange, turnsPerEpisode, drawn))
        places.push({ trajectory, turn });
    }
  }
  return places;
}

/** 0.7 · 10 is 7.000000000000001 in floating point. */
const rounding = 1e-9;

/** Up to `count` different turns of an episode of `turns` turns, in ascending order. */
export function branchTurns(
  turns: number,
  range: HopeConfig["branchRange"],
  count: number,
  seed: number,
): number[] {
  const [low = 0, high = 0] =
    "shares" in range
      ? range.shares.map((part) => Math.ceil(part * turns - rounding))
      : [range.turns[0], turns - range.turns[1]];
  const possible = Array.from({ length: turns }, (_, t) => t).filter((t) => t >= low && t < high);
  return permutation(possible.length, seed, streams.proposal)
    .slice(0, count)
    .map((i) => possible[i]!)
    .sort((a, b) => a - b);
}
