/**
 * Prioritized sampling over native memory: index i is drawn with probability p_i^alpha / Σ
 * p_j^alpha (Schaul et al., 2016, "Prioritized Experience Replay", equation 1). Calls take
 * microseconds and are synchronous. Given typed arrays, and arrays to write `into`, they allocate
 * none.
 */

import { NlacError } from "../base/errors.ts";
import {
  checkBoolean,
  checkInteger,
  checkKeys,
  checkNumber,
  checkNumbers,
  checkSeed,
  shown,
} from "../base/validation.ts";
import type { NativeSampler } from "../native/addon.ts";
import { callNative } from "../native/call-native.ts";
import { loadAddon } from "../native/load.ts";

/** Options of a `PrioritizedSampler`. */
export interface SamplerOptions {
  /** Indices are 0 … capacity - 1. At most 2^27. */
  capacity: number;
  /** Exponent of the priorities, at least 0; 0 samples uniformly. Default 0.1, the paper's. */
  alpha?: number | undefined;
  /**
   * Exponent of the importance weights in [0, 1], and the upper bound of a draw's own `beta`; 0
   * makes all weights 1. Default 0.
   */
  beta?: number | undefined;
  /** Draw number d is a function of only the seed, d and the priorities. Default 0. */
  seed?: number | bigint | undefined;
  /**
   * Where the priorities are stored: "cpu", "cuda" or "cuda:N". The draws are the same on each.
   * Default "cpu".
   */
  device?: string | undefined;
}

/** Result of `sample`. Every array has `count` elements. */
export interface Draws {
  indices: Int32Array;
  /** P(i), not the priority. */
  probabilities: Float32Array;
  /**
   * (n·P(i))^-beta divided by the largest such weight, n the number of positive priorities: at most
   * 1.
   */
  weights: Float32Array;
}

/** Options of a draw. */
export interface SampleOptions {
  /**
   * Takes one draw from each of `count` equal parts of the total, which spreads the draws. Default
   * false.
   */
  stratified?: boolean | undefined;
  /**
   * Exponent of these draws' importance weights, from 0 to the sampler's, for an annealed exponent.
   * Default: the sampler's.
   */
  beta?: number | undefined;
  /** Arrays to write to instead of new ones. */
  into?: Draws | undefined;
}

const largestCapacity = 2 ** 27;

/** Every method throws ERR_DISPOSED after `dispose`, and ERR_DEVICE if its GPU fails. */
export class PrioritizedSampler implements Disposable {
  readonly #device: string;
  #native: NativeSampler;

  /** Throws ERR_VALUE for an option out of range, ERR_DEVICE for a device that does not exist. */
  constructor(options: SamplerOptions) {
    this.#native = create(options);
    this.#device = options.device ?? "cpu";
  }

  /**
   * Loads a sampler from a file written by `save`, onto any device. Throws ERR_IO, ERR_CHECKPOINT,
   * ERR_DEVICE.
   */
  static load(path: string, options: Pick<SamplerOptions, "device"> = {}): PrioritizedSampler {
    checkKeys(options, "The options of load", ["device"], "ERR_VALUE");
    const { device = "cpu" } = options;
    const native = load(path, device);
    const sampler = new PrioritizedSampler({ capacity: 1, device });
    sampler.#replace(native);
    return sampler;
  }

  get capacity(): number {
    return callNative(() => this.#native.capacity);
  }

  get alpha(): number {
    return callNative(() => this.#native.alpha);
  }

  get beta(): number {
    return callNative(() => this.#native.beta);
  }

  /** Draws taken so far. */
  get draws(): number {
    return callNative(() => this.#native.draws());
  }

  /**
   * Sets priorities, before the exponent alpha. If an index occurs twice, the later priority
   * counts. The sums are updated lazily, by the next `total`, `min`, `max` or `sample`.
   *
   * @param indices [n] integers
   * @param priorities [n], rounded to float32
   * @throws NlacError ERR_SHAPE for different lengths, ERR_INDEX, ERR_PRIORITY for one that is NaN,
   *   infinite or negative; nothing is set then
   */
  set(indices: ArrayLike<number>, priorities: ArrayLike<number>): void {
    const where = toIndices(indices);
    const values = priorities instanceof Float32Array ? priorities : toPriorities(priorities);
    callNative(() => this.#native.set(where, values));
  }

  /** Priorities as set, 0 for indices never set. [n] for [n] indices. Throws ERR_INDEX. */
  get(indices: ArrayLike<number>): Float32Array {
    const where = toIndices(indices);
    return callNative(() => this.#native.get(where));
  }

  /** Σ p^alpha. */
  total(): number {
    return callNative(() => this.#native.total());
  }

  /**
   * The least positive priority, as set; 0 if none is positive. It has the largest importance
   * weight, 1.
   */
  min(): number {
    return callNative(() => this.#native.min());
  }

  /**
   * The largest priority, as set; 0 if none is positive. New transitions get it, so that each is
   * likely to be drawn once (Schaul et al., 2016, algorithm 1).
   */
  max(): number {
    return callNative(() => this.#native.max());
  }

  /**
   * Draws with replacement. An index of priority 0 is never drawn.
   *
   * @param count draws, at least 1
   * @throws NlacError ERR_EMPTY if no priority is positive, ERR_VALUE, ERR_SHAPE for arrays of
   *   another length
   */
  sample(count: number, options: SampleOptions = {}): Draws {
    checkInteger(count, "count", 1, largestCapacity);
    checkKeys(options, "The options of sample", ["stratified", "beta", "into"], "ERR_VALUE");
    const { beta } = options;
    if (beta !== undefined) checkNumber(beta, "beta", 0, this.beta);
    const stratified = checkBoolean(options.stratified ?? false, "stratified");
    const draws = options.into ?? {
      indices: new Int32Array(count),
      probabilities: new Float32Array(count),
      weights: new Float32Array(count),
    };
    const { indices, probabilities, weights } = draws;
    callNative(() => this.#native.sample(count, stratified, indices, probabilities, weights));
    if (beta !== undefined && beta < this.beta) {
      // A power of the sampler's weights, so the largest stays 1.
      const power = beta / this.beta;
      for (let i = 0; i < count; i++) weights[i] = weights[i]! ** power;
    }
    return draws;
  }

  /**
   * Writes priorities, options and the draw count into one checksummed file, atomically. Throws
   * ERR_IO.
   */
  save(path: string): void {
    callNative(() => this.#native.save(path));
  }

  /**
   * Replaces the state by that of a file written by `save`, including its options and random
   * sequence.
   *
   * @throws NlacError ERR_IO, ERR_CHECKPOINT for a damaged file or one of another capacity; the
   *   sampler is then unchanged
   */
  load(path: string): void {
    const native = load(path, this.#device);
    if (native.capacity !== this.capacity) {
      const saved = native.capacity;
      native.dispose();
      throw new NlacError(
        "ERR_CHECKPOINT",
        `${path} holds a sampler of capacity ${saved}, but this one has ${this.capacity}.`,
      );
    }
    this.#replace(native);
  }

  #replace(native: NativeSampler): void {
    this.#native.dispose();
    this.#native = native;
  }

  /** Frees the memory. May be called more than once. */
  dispose(): void {
    this.#native.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}

function load(path: string, device: string): NativeSampler {
  return callNative(() => loadAddon({ device }).loadSampler(path, device));
}

function create(options: SamplerOptions): NativeSampler {
  checkKeys(options, "A sampler's options", ["capacity", "alpha", "beta", "seed", "device"], "ERR_VALUE");
  const { capacity, alpha = 0.1, beta = 0, seed = 0, device = "cpu" } = options;
  checkInteger(capacity, "capacity", 1, largestCapacity);
  checkNumber(alpha, "alpha", 0);
  checkNumber(beta, "beta", 0, 1);
  const bits = checkSeed(seed, "seed");
  return callNative(() => loadAddon({ device }).createSampler(capacity, alpha, beta, bits, device));
}

/**
 * Rejects what Int32Array would change silently: 0.5 becomes 0, 2^32 becomes 0. The core checks
 * bounds.
 */
function toIndices(indices: ArrayLike<number>): Int32Array {
  if (indices instanceof Int32Array) return indices;
  checkNumbers(indices, "indices");
  const converted = Int32Array.from(indices);
  for (let i = 0; i < converted.length; i++) {
    if (converted[i] === indices[i]) continue;
    throw new NlacError(
      "ERR_INDEX",
      `indices[${i}] must be an integer of 32 bits; it is ${shown(indices[i])}.`,
    );
  }
  return converted;
}

/** The core checks that they are finite and not negative. */
function toPriorities(priorities: ArrayLike<number>): Float32Array {
  checkNumbers(priorities, "priorities");
  return Float32Array.from(priorities, (priority, i) => {
    if (typeof priority === "number") return priority;
    throw new NlacError("ERR_PRIORITY", `priorities[${i}] must be a number; it is ${shown(priority)}.`);
  });
}
