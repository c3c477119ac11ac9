/** A stream of random choices, determined by the seed. */

import { streams, uniform } from "../../base/random.ts";

export class Draws {
  readonly #seed: number;
  #count = 0;

  constructor(seed: number) {
    this.#seed = seed;
  }

  /** Uniform in [0, 1). */
  next(): number {
    return uniform(this.#seed, streams.scenario, this.#count++);
  }

  chance(probability: number): boolean {
    return this.next() < probability;
  }

  /** One of `items`, which must not be empty. */
  pick<T>(items: readonly T[]): T {
    return items[Math.floor(this.next() * items.length)]!;
  }

  /** `count` of `items`, or all if there are fewer, in their original order. */
  sample<T>(items: readonly T[], count: number): T[] {
    const left = [...items];
    while (left.length > count) left.splice(Math.floor(this.next() * left.length), 1);
    return left;
  }

  /** One of the choices, with probability proportional to its weight. */
  weighted<T>(choices: readonly (readonly [choice: T, weight: number])[]): T {
    let place = this.next() * choices.reduce((sum, [, weight]) => sum + weight, 0);
    for (const [choice, weight] of choices) {
      place -= weight;
      if (place < 0) return choice;
    }
    return choices.at(-1)![0];
  }
}
