/**
 * Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011), equal to
 * native/core/random.h. A number is a pure function of (seed, stream, counter), so that a resumed
 * run repeats its numbers without saved state.
 */

/** One stream per use, so that uses are independent. */
export const streams = {
  taskOrder: 1,
  episode: 2,
  policy: 3,
  future: 4,
  target: 5,
  attempt: 6,
  critique: 7,
  refinement: 8,
  correction: 9,
  evaluation: 10,
  learner: 11,
  split: 12,
  warmup: 13,
  world: 14,
  rehearsal: 15,
  minibatch: 16,
  bootstrap: 17,
  diagnosis: 18,
  next: 19,
  person: 20,
  scenario: 21,
  check: 22,
  permutation: 23,
  shuffle: 24,
  proposal: 25,
  pair: 26,
  recording: 27,
  probes: 28,
} as const;

function multiply(a: number, b: number): [high: number, low: number] {
  const a0 = a & 0xffff;
  const a1 = a >>> 16;
  const b0 = b & 0xffff;
  const b1 = b >>> 16;
  const low = a0 * b0;
  const middle = a1 * b0 + (low >>> 16);
  const middle2 = a0 * b1 + (middle & 0xffff);
  const high = a1 * b1 + Math.floor(middle / 0x10000) + (middle2 >>> 16);
  return [high >>> 0, (((middle2 & 0xffff) << 16) | (low & 0xffff)) >>> 0];
}

/** Four 32-bit words. `seed`, `stream` and `counter` are non-negative safe integers. */
export function philox(seed: number, stream: number, counter: number): [number, number, number, number] {
  let c0 = counter >>> 0;
  let c1 = Math.floor(counter / 2 ** 32) >>> 0;
  let c2 = stream >>> 0;
  let c3 = Math.floor(stream / 2 ** 32) >>> 0;
  let k0 = seed >>> 0;
  let k1 = Math.floor(seed / 2 ** 32) >>> 0;
  for (let round = 0; round < 10; round++) {
    const [h0, l0] = multiply(0xd2511f53, c0);
    const [h1, l1] = multiply(0xcd9e8d57, c2);
    c0 = (h1 ^ c1 ^ k0) >>> 0;
    c1 = l1;
    c2 = (h0 ^ c3 ^ k1) >>> 0;
    c3 = l0;
    k0 = (k0 + 0x9e3779b9) >>> 0;
    k1 = (k1 + 0xbb67ae85) >>> 0;
  }
  return [c0, c1, c2, c3];
}

/** Uniform in [0, 1) with 53 bits. */
export function uniform(seed: number, stream: number, counter: number): number {
  const [a, b] = philox(seed, stream, counter);
  return ((a >>> 0) * 2 ** 21 + (b >>> 11)) / 2 ** 53;
}

/** A derived seed of 53 bits. */
export function derivedSeed(seed: number, stream: number, counter: number): number {
  const [a, b] = philox(seed, stream, counter);
  return (a >>> 0) * 2 ** 21 + (b >>> 11);
}

/** A random permutation of 0 … count - 1 (Fisher–Yates), a pure function of its arguments. */
export function permutation(count: number, seed: number, stream: number): number[] {
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(uniform(seed, stream, i) * (i + 1));
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}
