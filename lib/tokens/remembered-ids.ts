/**
 * Ids by what determines them. The prompts of an agent repeat: the same request follows every
 * action, and an environment often gives the same answer.
 */

import { createHash } from "node:crypto";

/** Ids that are kept, of which all are forgotten at once. A key counts as 64 of them. */
const capacity = 1_048_576;

export class RememberedIds {
  readonly #byKey = new Map<string, readonly number[]>();
  #size = 0;

  /**
   * The ids that `source` determines, as a new array. `make` makes them; if it throws, nothing is
   * remembered.
   *
   * @param source JSON without functions, cycles or bigints
   */
  ids(source: unknown, make: () => number[]): number[] {
    const key = createHash("sha256").update(JSON.stringify(source)).digest("base64");
    const known = this.#byKey.get(key);
    if (known !== undefined) return [...known];
    const made = make();
    const size = made.length + 64;
    if (this.#size + size > capacity) {
      this.#byKey.clear();
      this.#size = 0;
    }
    if (size <= capacity) {
      this.#byKey.set(key, made);
      this.#size += size;
    }
    return [...made];
  }
}
