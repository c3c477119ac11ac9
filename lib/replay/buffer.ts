/**
 * The replay buffer: the last `capacity` transitions and a prioritized sampler over them. A new
 * transition gets the largest current priority, so that it is likely to be trained on once before
 * its own L1 sets its priority (Schaul et al., 2016, algorithm 1).
 */

import { join } from "node:path";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import type { Stream, Transition } from "../episodes/trajectory.ts";
import { readJson } from "../files/disk.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { PrioritizedSampler } from "../ops/sampler.ts";
import { mean } from "../statistics/mean.ts";

export interface ReplayBufferOptions {
  /** Number of transitions stored; the oldest are overwritten. */
  capacity: number;
  /** Exponent of the priorities; 0 samples uniformly. */
  priorityExponent: number;
  /** Exponent of the importance weights; 0 makes them all 1. */
  importanceExponent: number;
  seed: number;
}

/** A draw, in plain arrays so that a checkpoint can store it. */
export const replaySample = z.strictObject({
  indices: z.array(z.int().min(0)),
  /** P(i). */
  probabilities: z.array(z.number()),
  /** Importance weights, at most 1. */
  weights: z.array(z.number()),
});

export type ReplaySample = z.infer<typeof replaySample>;

/**
 * The minimum priority. It is above 0, because a drawn transition without a loss or target now may
 * have one later. Raised to the exponent it is at most 1e-3: with a small exponent, a fixed minimum
 * would become nearly 1.
 */
const minPriority = (exponent: number) => Math.min(1e-6, Math.max(10 ** (-3 / exponent), 1e-37));

/** Priority of a new transition if no other has one. */
const firstPriority = 1;

/** Most priorities that a metric reads; of more, evenly spaced ones. */
const maxRead = 2 ** 17;

/** Content of replay.json: the number of transitions added so far. */
const savedCounts = z.strictObject({ added: z.int().min(0) });

export class ReplayBuffer {
  readonly capacity: number;
  readonly #transitions: Transition[] = [];
  readonly #sampler: PrioritizedSampler;
  readonly #exponent: number;
  readonly #minPriority: number;
  #added = 0;

  constructor({ capacity, priorityExponent, importanceExponent, seed }: ReplayBufferOptions) {
    this.capacity = capacity;
    this.#exponent = priorityExponent;
    this.#minPriority = minPriority(priorityExponent);
    this.#sampler = new PrioritizedSampler({
      capacity,
      alpha: priorityExponent,
      beta: importanceExponent,
      seed,
    });
  }

  /** Number of transitions stored. */
  get size(): number {
    return this.#transitions.length;
  }

  /** Whether any transition can be drawn. */
  get drawable(): boolean {
    return this.#sampler.total() > 0;
  }

  add(transitions: readonly Transition[]): void {
    const priority = this.#sampler.max() || firstPriority;
    const indices = Int32Array.from(transitions, (transition) => this.#store(transition));
    this.#sampler.set(indices, new Float32Array(indices.length).fill(priority));
  }

  /** Draws `count` indices with replacement. Throws ERR_EMPTY if no transition can be drawn. */
  sample(count: number): ReplaySample {
    if (this.size === 0) throw new NlacError("ERR_EMPTY", "The replay buffer has no transition to draw.");
    const { indices, probabilities, weights } = this.#sampler.sample(count);
    return {
      indices: Array.from(indices),
      probabilities: Array.from(probabilities),
      weights: Array.from(weights),
    };
  }

  /** Excludes the transitions of episodes before number `episode` from draws; they stay stored. */
  retire(episode: number): void {
    const old = this.#transitions.flatMap(({ trajectory }, i) => (trajectory < episode ? [i] : []));
    if (old.length > 0) this.#sampler.set(Int32Array.from(old), new Float32Array(old.length));
  }

  /** The transitions at `indices`. Throws ERR_INDEX. */
  get(indices: readonly number[]): Transition[] {
    return indices.map((index) => {
      const transition = this.#transitions[index];
      if (transition === undefined) throw new NlacError("ERR_INDEX", `No transition is stored at ${index}.`);
      return transition;
    });
  }

  /**
   * Sets the priority of a drawn transition; 0 is raised to the least priority. Throws ERR_PRIORITY
   * for a priority that is NaN, infinite or negative.
   */
  setPriority(index: number, priority: number): void {
    const least = priority >= 0 ? Math.max(priority, this.#minPriority) : priority;
    this.#sampler.set(Int32Array.of(index), Float32Array.of(least));
  }

  /** The priority at `index`. */
  priority(index: number): number {
    return this.#sampler.get(Int32Array.of(index))[0]!;
  }

  /**
   * Metrics of a draw. `episodes`: number of the run's episodes so far, from which ages are
   * computed.
   */
  metrics(
    { indices, weights }: Pick<ReplaySample, "indices" | "weights">,
    episodes: number,
  ): Record<string, number> {
    const ages = this.get(indices).map(({ trajectory }) => episodes - 1 - trajectory);
    return {
      "replay/size": this.size,
      "replay/effective": this.#effective(),
      "replay/age": mean(ages),
      "replay/weight": mean(weights),
    };
  }

  /**
   * exp of the entropy of P. Not from draws: the exponential of a mean of -log P over few of them is
   * too large; of one, it is 1 / P, whose expectation is the number of transitions, whatever P is.
   */
  #effective(): number {
    const every = Math.ceil(this.size / maxRead);
    const read = new Int32Array(Math.ceil(this.size / every)).map((_, i) => i * every);
    // P = w / Σ w, so that the entropy is log Σ w - Σ w log w / Σ w.
    let [sum, products] = [0, 0];
    for (const priority of this.#sampler.get(read)) {
      if (priority === 0) continue; // retired
      const logWeight = this.#exponent * Math.log(priority);
      const weight = Math.exp(logWeight);
      sum += weight;
      products += weight * logWeight;
    }
    return (this.size / read.length) * sum * Math.exp(-products / sum);
  }

  /**
   * Writes the priorities to `directory`; the transitions are restored from the run's episodes.
   * Throws ERR_IO.
   */
  save(directory: string): void {
    this.#sampler.save(join(directory, "sampler.bin"));
    const counts: z.infer<typeof savedCounts> = { added: this.#added };
    writeAtomically(join(directory, "replay.json"), JSON.stringify(counts));
  }

  /**
   * Restores into an empty buffer what `save` wrote, given the transitions of all episodes so far.
   * They are read one at a time, and the last `capacity` are stored. Throws ERR_CHECKPOINT, ERR_IO.
   */
  async restore(directory: string, transitions: Stream<Transition>): Promise<void> {
    const saved = readJson(join(directory, "replay.json"), savedCounts, "ERR_CHECKPOINT");
    for await (const transition of transitions) this.#store(transition);
    if (saved.added !== this.#added) {
      throw new NlacError(
        "ERR_CHECKPOINT",
        `${directory} counts ${saved.added} transitions, but the run's episodes have ${this.#added}.`,
      );
    }
    this.#sampler.load(join(directory, "sampler.bin"));
  }

  dispose(): void {
    this.#sampler.dispose();
  }

  /** Stores a transition and returns its index; a full buffer overwrites the oldest. */
  #store(transition: Transition): number {
    const index = this.#added++ % this.capacity;
    this.#transitions[index] = transition;
    return index;
  }
}
