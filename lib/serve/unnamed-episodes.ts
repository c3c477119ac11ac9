/**
 * Open episodes that the client did not name, by the cache keys of their conversations. A request
 * finds its episode in a time that does not depend on how many are open.
 */

import { getOrAdd } from "../base/get-or-add.ts";
import { contradictionOf, type OpenEpisode, type Relations } from "./open-episode.ts";

type Episode = Relations & Pick<OpenEpisode, "asked" | "key" | "turns" | "waiting">;
type Named = readonly [name: string, episode: Episode];

export class UnnamedEpisodes {
  /** By the key after the last turn, the latest last. */
  readonly #continued = new Map<string, Named[]>();
  /** Those with several turns, by the key before the last turn. */
  readonly #repeated = new Map<string, Named[]>();

  /** Adds an episode as the latest. `asked` and `key` stay the same until it is removed. */
  add(name: string, episode: Episode): void {
    getOrAdd(this.#continued, episode.key, () => []).push([name, episode]);
    // A repeated first request could belong to any new episode.
    if (episode.turns.length > 1) getOrAdd(this.#repeated, episode.asked, () => []).push([name, episode]);
  }

  /** Removes an episode, if it was added. */
  remove(name: string, { asked, key }: Pick<Episode, "asked" | "key">): void {
    removeFrom(this.#continued, key, name);
    removeFrom(this.#repeated, asked, name);
  }

  clear(): void {
    this.#continued.clear();
    this.#repeated.clear();
  }

  /**
   * The episode with most messages that a request continues, and of several the latest; else the only
   * one that it repeats. Skips episodes with a request in progress, and those whose relations are not
   * the request's.
   *
   * @param names cache keys of the conversation after each of the request's messages
   */
  find(names: readonly string[], relations: Relations = {}): string | undefined {
    const isFree = ([, episode]: Named) =>
      episode.waiting === 0 && contradictionOf(episode, relations) === undefined;
    for (let i = names.length - 1; i >= 0; i--) {
      const [found] = this.#continued.get(names[i]!)?.findLast(isFree) ?? [];
      if (found !== undefined) return found;
    }
    const [only, ...others] = this.#repeated.get(names.at(-1)!)?.filter(isFree) ?? [];
    return others.length === 0 ? only?.[0] : undefined;
  }
}

function removeFrom(lists: Map<string, Named[]>, key: string, name: string): void {
  const list = lists.get(key);
  const at = list?.findLastIndex(([one]) => one === name) ?? -1;
  if (at < 0) return;
  list!.splice(at, 1);
  if (list!.length === 0) lists.delete(key);
}
