/**
 * Inputs for all implementations, equal to those of bench/peers/common.py: number i of a seed is
 * hash(hash(seed) + i), 32 bits.
 */

import { getOrAdd } from "../base/get-or-add.ts";
import { type DType, Tensor } from "../ops/tensor.ts";

/** Length of the repeated block of numbers: a prime, so that rows of a matrix differ. */
const block = 2 ** 20 + 7;
/** One block per seed, reused because a model has hundreds of tensors. */
const blocks = new Map<number, Float32Array>();

/** [count] 32-bit numbers. */
export function randomBits(seed: number, count: number): Uint32Array {
  const start = mixed(seed);
  return Uint32Array.from({ length: count }, (_, i) => mixed(start + i));
}

/** [count] f32 in [0, 1), multiples of 2^-24. */
export function uniform(seed: number, count: number): Float32Array {
  return Float32Array.from(randomBits(seed, count), (bits) => (bits >>> 8) * 2 ** -24);
}

/** [count] f32 in [-scale, scale): one block of random numbers, repeated. */
export function spread(seed: number, count: number, scale: number): Float32Array {
  const numbers = getOrAdd(blocks, seed, () => uniform(seed, block));
  const random = numbers.subarray(0, count).map((value) => (value * 2 - 1) * scale);
  const values = new Float32Array(count);
  for (let start = 0; start < count; start += random.length) {
    values.set(random.subarray(0, Math.min(random.length, count - start)), start);
  }
  return values;
}

/** A tensor of `spread`. */
export function spreadTensor(
  seed: number,
  shape: readonly number[],
  scale: number,
  dtype: DType,
  device: string,
): Tensor {
  return Tensor.from(
    spread(
      seed,
      shape.reduce((product, size) => product * size, 1),
      scale,
    ),
    shape,
    {
      dtype,
      device,
    },
  );
}

function mixed(x: number): number {
  let bits = x >>> 0;
  bits = Math.imul(bits ^ (bits >>> 16), 0x7feb352d) >>> 0;
  bits = Math.imul(bits ^ (bits >>> 15), 0x846ca68b) >>> 0;
  return (bits ^ (bits >>> 16)) >>> 0;
}
