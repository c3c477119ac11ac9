/** Objects that claim to be handles of the addon. */

import { describe, expect, test } from "vitest";
import type { NativeSampler, NativeTensor } from "../../lib/native/addon.ts";
import { loadAddon } from "../../lib/native/load.ts";

const addon = loadAddon();
const coded = (code: string) => expect.objectContaining({ code });
const makeTensor = () => addon.tensorFrom(Float32Array.of(1, 2, 3), [3], "float32", "cpu");
const makeSampler = () => addon.createSampler(3, 0, 0, 0n, "cpu");

describe("a handle with the prototype of another class", () => {
  const tensor = makeTensor();
  const disguised = Object.setPrototypeOf(makeSampler(), Object.getPrototypeOf(tensor)) as NativeTensor;

  test("is no tensor", () => {
    expect(() => addon.ema([disguised], [tensor], [], 0.5, 0n, 0n)).toThrow(coded("ERR_VALUE"));
  });

  test("has none of its properties and methods", () => {
    expect(() => disguised.shape).toThrow(coded("ERR_VALUE"));
    expect(() => disguised.toArray()).toThrow(TypeError);
    const sampler = Object.setPrototypeOf(
      makeTensor(),
      Object.getPrototypeOf(makeSampler()),
    ) as NativeSampler;
    expect(() => sampler.capacity).toThrow(coded("ERR_VALUE"));
  });
});

test("an object that inherits from a handle is none", () => {
  const tensor = makeTensor();
  const heir = Object.create(tensor) as NativeTensor;
  expect(() => addon.ema([heir], [tensor], [], 0.5, 0n, 0n)).toThrow(coded("ERR_VALUE"));
  expect(() => heir.shape).toThrow(coded("ERR_VALUE"));
});

test("handles keep their properties", () => {
  expect(makeTensor().shape).toEqual([3]);
  expect(makeSampler().capacity).toBe(3);
});
