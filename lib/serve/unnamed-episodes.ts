/**
 * Open episodes that the client did not name, by the cache keys of their conversations. A request
 * finds its episode in a time that does not depend on how many are open.
 */

import { getOrAdd } from "../base/get-or-add.ts";
import { contradictionOf, type OpenEpisode, type Relations } from "./open-episode.ts";

type Entry = Relations & Pick<OpenEpisode, "asked" | "key" | "turns" | "waiting">;

export class UnnamedEpisodes {
  /** Names by the key after the last turn, the latest last. */
  readonly #continued = new Map<string, string[]>();
  /** Names of episodes with several turns, by the key before the last turn. */
  readonly #repeated = new Map<string, string[]>();
  readonly #episodes = new Map<string, Entry>();

  /** Adds an episode as the latest. `asked` and `key` stay the same until it is removed. */
  add(name: string, episode: Entry): void {
    this.#episodes.set(name, episode);
    getOrAdd(this.#continued, episode.key, () => []).push(name);
    // A repeated first request could belong to any new episode.
    if (episode.turns.length > 1) getOrAdd(this.#repeated, episode.asked, () => []).push(name);
  }

  remove(name: string): void {
    const episode = this.#episodes.get(name);
    if (episode === undefined) return;
    this.#episodes.delete(name);
    removeFrom(this.#continued, episode.key, name);
    removeFrom(this.#repeated, episode.asked, name);
  }

  clear(): void {
    this.#episodes.clear();
    this.#continued.clear();
    this.#repeated.clear();
  }

  /**
   * The episode with most messages that a request continues, and of several the latest; else the only
   * one that it repeats. Episodes with a request in progress are skipped, and those that `relations`
   * contradict.
   *
   * @param names cache keys of the conversation after each of the request's messages
   */
  find(names: readonly string[], relations: Relations = {}): string | undefined {
    const isFree = (name: string) => {
      const episode = this.#episodes.get(name)!;
      return episode.waiting === 0 && contradictionOf(episode, relations) === undefined;
    };
    for (let i = names.length - 1; i >= 0; i--) {
      const found = this.#continued.get(names[i]!)?.findLast(isFree);
      if (found !== undefined) return found;
    }
    const [only, ...others] = this.#repeated.get(names.at(-1)!)?.filter(isFree) ?? [];
    return others.length === 0 ? only : undefined;
  }
}

function removeFrom(lists: Map<string, string[]>, key: string, name: string): void {
  const list = lists.get(key);
  const at = list?.lastIndexOf(name) ?? -1;
  if (at < 0) return;
  list!.splice(at, 1);
  if (list!.length === 0) lists.delete(key);
}
