/** Objects that claim to be handles of the addon, and other arguments that lib/ does not pass. */

import { once } from "node:events";
import { existsSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import type {
  NativeGenerateRequest,
  NativeLearnerOptions,
  NativeSampler,
  NativeTensor,
} from "../../lib/native/addon.ts";
import { loadAddon } from "../../lib/native/load.ts";
import { tinyConfig } from "../support/tiny.ts";

const addon = loadAddon();
const coded = (code: string) => expect.objectContaining({ code });
const makeTensor = () => addon.tensorFrom(Float32Array.of(1, 2, 3), [3], "float32", "cpu");
const makeSampler = () => addon.createSampler(3, 0, 0, 0n, "cpu");
const options: NativeLearnerOptions = {
  device: "cpu",
  dtype: "float32",
  int8Generation: false,
  gradientCheckpointing: false,
  microBatchTokens: 256,
  cacheBytes: 2 ** 24,
  heads: "none",
  adapter: undefined,
  ranks: undefined,
  sharding: 0,
  layerwiseGeneration: false,
};
const request: NativeGenerateRequest = {
  tokens: Int32Array.of(1),
  maxNewTokens: 4,
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  forbidden: new Int32Array(0),
  grammar: "",
  forced: new Int32Array(0),
  seed: 0n,
  stopTokenIds: new Int32Array(0),
  stop: [],
  keepHidden: false,
  topLogProbs: 0,
};

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

test("a class makes no handle of an external that is not its own", async () => {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { _handle: socket } = server as unknown as { _handle: { _externalStream: unknown } };
  for (const handle of [makeTensor(), makeSampler()]) {
    const Class = handle.constructor as new (...given: unknown[]) => unknown;
    expect(() => new Class(socket._externalStream)).toThrow(/made by/);
    expect(() => new Class()).toThrow(/made by/);
  }
  server.close();
});

describe("arguments that change while they are read", () => {
  test("an array that is detached by the shape's getter has no elements", () => {
    const data = new Float32Array(4096);
    const shape = Object.defineProperty([0], 0, {
      get: () => structuredClone(4096, { transfer: [data.buffer] }),
    });
    expect(() => addon.tensorFrom(data, shape, "float32", "cpu")).toThrow(coded("ERR_SHAPE"));
    expect(data.length).toBe(0);
  });

  test("the sampler takes no arrays that another thread could change", () => {
    const sampler = makeSampler();
    const shared = new Int32Array(new SharedArrayBuffer(4));
    expect(() => sampler.set(shared, Float32Array.of(1))).toThrow(coded("ERR_VALUE"));
    expect(() => sampler.get(shared)).toThrow(coded("ERR_VALUE"));
    sampler.set(new Int32Array(1), Float32Array.of(1));
    expect(sampler.get(new Int32Array(1))).toEqual(Float32Array.of(1));
  });
});

test("a path with a null character is refused", () => {
  const path = join(tmpdir(), `nlac-handles-${process.pid}\0rest`);
  const whole = path.slice(0, path.indexOf("\0"));
  expect(() => makeSampler().save(path)).toThrow(coded("ERR_VALUE"));
  expect(existsSync(whole)).toBe(false);
  expect(() => addon.loadSampler(path, "cpu")).toThrow(coded("ERR_VALUE"));
  expect(() => addon.ggufMetadata(path)).toThrow(coded("ERR_VALUE"));
  expect(() => addon.ggufConfig(path)).toThrow(coded("ERR_VALUE"));
  expect(() => addon.loadLearner(path, options)).toThrow(coded("ERR_VALUE"));
  expect(() => addon.resumeLearner(path, options, "")).toThrow(coded("ERR_VALUE"));
});

test("numbers that a rank's place cannot have are refused", () => {
  const place = { rank: 0, ranks: 1, address: "127.0.0.1", port: 0, serves: true, prefix: "a", timeoutMs: 1 };
  for (const wrong of [{ rank: 2 ** 32 }, { ranks: 2 ** 32 + 1 }, { timeoutMs: 2 ** 53 }, { timeoutMs: -1 }])
    expect(() => addon.joinRanks({ ...place, ...wrong })).toThrow(coded("ERR_VALUE"));
});

test("token bytes that are refused leave the earlier ones in use", async () => {
  const learner = await addon.createLearner(JSON.stringify(tinyConfig), 1n, options);
  const letters = (letter: string) =>
    Array.from({ length: tinyConfig.vocab_size }, () => new TextEncoder().encode(letter));
  const finish = async (stop: string) => {
    const [result] = await learner.generate([{ ...request, stop: [stop] }], "online", undefined).done;
    return result!.finishReason;
  };
  learner.setTokenBytes(letters("a"), new Int32Array(0));
  expect(() => learner.setTokenBytes(letters("b"), Int32Array.of(tinyConfig.vocab_size))).toThrow(
    coded("ERR_VALUE"),
  );
  expect(await finish("b")).toBe("length");
  expect(await finish("a")).toBe("stop");
  await learner.dispose();
});
