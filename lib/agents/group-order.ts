/**
 * The order in which a served run's episodes are trained on: the order of their file or, for
 * methods that compare the episodes of a group, the order in which groups become complete.
 * Held-out episodes are left out. It depends on the file only, so that a restarted server trains
 * in the same order.
 */

import type { EpisodeRecord } from "../episodes/records.ts";

export class GroupOrder {
  readonly #size: number;
  /** Episodes of groups that are not complete, by the group's name. */
  readonly #incomplete = new Map<string, EpisodeRecord[]>();

  /** @param size episodes per group; 1 is without groups */
  constructor(size: number) {
    this.#size = size;
  }

  /**
   * Returns the episodes that can be trained on after `record`: `record`, or the group that it
   * completes. Later episodes of the same name begin a new group. Episodes without a group are left
   * out, and so are held-out ones.
   */
  add(record: EpisodeRecord): EpisodeRecord[] {
    if (record.split === "test") return [];
    if (this.#size === 1) return [record];
    const { group: name } = record;
    if (name === undefined) return [];
    const group = [...(this.#incomplete.get(name) ?? []), record];
    if (group.length < this.#size) {
      this.#incomplete.set(name, group);
      return [];
    }
    this.#incomplete.delete(name);
    return group;
  }
}
