/**
 * A replay buffer without priorities: the newest items, drawn uniformly. A draw depends only on its
 * seed and on the items, so nothing of it is in a checkpoint: an algorithm adds the run's episodes
 * again.
 */

import { streams, uniform } from "../base/random.ts";

export class UniformReplay<Item> {
  readonly #capacity: number;
  readonly #items: Item[] = [];

  /** @param capacity number of items that are kept */
  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  /** Number of items stored. */
  get size(): number {
    return this.#items.length;
  }

  /** Stores items, and drops the oldest beyond the capacity. */
  add(items: readonly Item[]): void {
    this.#items.push(...items);
    this.#items.splice(0, Math.max(0, this.#items.length - this.#capacity));
  }

  /** Draws `count` indices uniformly with replacement. */
  draw(count: number, seed: number): number[] {
    return Array.from({ length: count }, (_, i) =>
      Math.floor(uniform(seed, streams.minibatch, i) * this.#items.length),
    );
  }

  /** The items at `indices`, which `draw` returned. */
  get(indices: readonly number[]): Item[] {
    return indices.map((index) => this.#items[index]!);
  }
}
