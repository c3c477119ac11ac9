/**
 * The order in which a served run's episodes are trained on: the order of their file or, for
 * methods that compare the episodes of a group, the order in which groups become complete.
 * Held-out episodes are left out. It depends on the file only, so that a restarted server trains
 * in the same order.
 */

import { dropOldest } from "../base/drop-oldest.ts";
import type { EpisodeRecord } from "../episodes/records.ts";
import { isLeasedGroup } from "../episodes/served-tasks.ts";

/** Incomplete groups in memory, and names of complete leased ones. */
const most = { incomplete: 1024, complete: 16_384 } as const;

export class GroupOrder {
  readonly #size: number;
  /**
   * Episodes of groups that are not complete, by the group's name, the one that grew last at the
   * end.
   */
  readonly #incomplete = new Map<string, EpisodeRecord[]>();
  /** Names of complete groups that were leased. */
  readonly #complete = new Set<string>();

  /** @param size episodes per group; 1 is without groups */
  constructor(size: number) {
    this.#size = size;
  }

  /**
   * Returns the episodes that can be trained on after `record`: `record` itself, or the group that
   * it completes. Later episodes of the same name begin a new group, unless the group was leased:
   * then they are a surplus, as when a task was leased again and its first episode was rewarded
   * late. Left out are a surplus, held-out episodes, episodes without a group, and those of a group
   * that stayed incomplete while 1,024 others grew.
   */
  add(record: EpisodeRecord): EpisodeRecord[] {
    if (record.split === "test") return [];
    if (this.#size === 1) return [record];
    const { group: name } = record;
    if (name === undefined || this.#complete.has(name)) return [];
    const group = [...(this.#incomplete.get(name) ?? []), record];
    this.#incomplete.delete(name);
    if (group.length < this.#size) {
      this.#incomplete.set(name, group);
      dropOldest(this.#incomplete, most.incomplete);
      return [];
    }
    if (isLeasedGroup(name)) {
      this.#complete.add(name);
      dropOldest(this.#complete, most.complete);
    }
    return group;
  }
}
