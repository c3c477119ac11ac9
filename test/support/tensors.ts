/** Tensors of float32, and comparisons of their elements. */

import { expect } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import { Tensor } from "../../lib/ops/index.ts";

export function codeOf(call: () => unknown): string {
  try {
    call();
  } catch (error) {
    expect(error).toBeInstanceOf(NlacError);
    return (error as NlacError).code;
  }
  return "no error";
}

export const f32 = (data: Float32Array, shape: number[]) => Tensor.from(data, shape);

export const array = (tensor: Tensor) => Array.from(tensor.toArray() as Float32Array);

export function expectClose(actual: readonly number[], expected: readonly number[], within = 1e-5) {
  expect(actual.length).toBe(expected.length);
  for (const [i, value] of actual.entries()) expect(Math.abs(value - expected[i]!)).toBeLessThan(within);
}
