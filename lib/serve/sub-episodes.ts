/** How open episodes depend on each other: a sub-episode works for its parent. */

import { getOrAdd } from "../base/get-or-add.ts";
import type { OpenEpisode } from "./open-episode.ts";

/** Open episodes by name. */
type Open = ReadonlyMap<string, OpenEpisode>;

/**
 * The episodes that were not answered or rewarded for `ms` milliseconds, and that neither work for
 * an active one nor have an active one that works for them.
 */
export function idleEpisodes(open: Open, ms: number): [string, OpenEpisode][] {
  /** Whether an episode, or one that it works for, is active; each is looked at once. */
  const active = new Map<OpenEpisode, boolean>();
  const parentOf = ({ parent }: OpenEpisode) => (parent === undefined ? undefined : open.get(parent));
  for (const episode of open.values()) {
    if (episode.waiting === 0 && performance.now() - episode.answered >= ms) continue;
    let one: OpenEpisode | undefined = episode;
    for (; one !== undefined && !active.has(one); one = parentOf(one)) active.set(one, true);
  }
  const isIdle = (episode: OpenEpisode) => {
    const path: OpenEpisode[] = [];
    let one: OpenEpisode | undefined = episode;
    for (; one !== undefined && !active.has(one); one = parentOf(one)) {
      active.set(one, false);
      path.push(one);
    }
    const isActive = one !== undefined && active.get(one)!;
    for (const one of path) active.set(one, isActive);
    return !isActive;
  };
  return [...open].filter(([, episode]) => isIdle(episode));
}

/** Episodes that work for others, by the parent's name. */
export type Workers = ReadonlyMap<string | undefined, [string, OpenEpisode][]>;

export function workersOf(open: Open): Workers {
  const workers = new Map<string | undefined, [string, OpenEpisode][]>();
  for (const [child, episode] of open) getOrAdd(workers, episode.parent, () => []).push([child, episode]);
  return workers;
}

/**
 * The episodes that worked for episode `name`, or for one that did. Those without a reward of their
 * own get `total`, the reward of that episode.
 */
export function paidWorkers(workers: Workers, name: string, total: number): [string, OpenEpisode][] {
  const found: [string, OpenEpisode][] = [];
  const parents = [name];
  for (const parent of parents)
    for (const worker of workers.get(parent) ?? []) {
      if (worker[0] === name) continue; // clients may name parents in a circle
      found.push(worker);
      parents.push(worker[0]);
    }
  return found.map(([child, helper]) => {
    const last = helper.turns.at(-1)!;
    const paid = helper.rewarded ? last : { ...last, reward: total };
    return [child, { ...helper, turns: [...helper.turns.slice(0, -1), paid] }];
  });
}
