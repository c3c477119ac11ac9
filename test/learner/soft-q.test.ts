/**
 * softQ against a recorded run of transformers and float64 autograd: scripts/fixtures/soft_q.py
 * made it.
 */

import { cpSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, test } from "vitest";
import { Learner } from "../../lib/learner/learner.ts";
import type { SoftQOptions, SoftQResult, SoftQText } from "../../lib/model/language-model.ts";
import { inDirectory, tinyLearner } from "../support/tiny.ts";

const fixture = fileURLToPath(new URL("../fixtures/training/soft-q", import.meta.url));
const recorded = JSON.parse(readFileSync(join(fixture, "expected.json"), "utf8")) as {
  options: SoftQOptions;
  texts: SoftQText[];
  results: Record<keyof SoftQResult, number[]>[];
};

const open: Learner[] = [];
afterEach(() => Promise.all(open.splice(0).map((learner) => learner.dispose())));

async function resume(options = {}): Promise<Learner> {
  const learner = await Learner.resume(fixture, { dtype: "float32", heads: "q", verify: false, ...options });
  open.push(learner);
  return learner;
}

/** The float32 tensors of a safetensors file. */
function readTensors(path: string): Map<string, Float32Array> {
  const bytes = readFileSync(path);
  const start = 8 + Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString("utf8", 8, start)) as Record<string, { data_offsets?: number[] }>;
  return new Map(
    Object.entries(header).flatMap(([name, { data_offsets }]) => {
      if (data_offsets === undefined) return [];
      const [from, to] = data_offsets as [number, number];
      return [
        [
          name,
          new Float32Array(
            bytes.buffer.slice(bytes.byteOffset + start + from, bytes.byteOffset + start + to),
          ),
        ],
      ];
    }),
  );
}

describe.each([
  { microBatchTokens: 2048, gradientCheckpointing: false },
  { microBatchTokens: 1, gradientCheckpointing: true },
])("with %o", (learnerOptions) => {
  test("values and gradients are those of float64 autograd", async () => {
    const learner = await resume(learnerOptions);
    const results = await learner.softQ(recorded.texts, recorded.options);
    let largest = 0;
    for (const [i, result] of results.entries()) {
      for (const [name, expected] of Object.entries(recorded.results[i]!)) {
        const actual = result[name as keyof SoftQResult];
        expect(actual).toHaveLength(expected.length);
        for (const [t, value] of expected.entries()) {
          largest = Math.max(largest, Math.abs(actual[t]! - value) / Math.max(1, Math.abs(value)));
        }
      }
    }
    expect(largest).toBeLessThan(1e-5);
    await inDirectory(async (directory) => {
      await learner.save(directory);
      const expected = readTensors(join(fixture, "expected.safetensors"));
      const actual = readTensors(join(directory, "gradients.safetensors"));
      expect([...actual.keys()].sort()).toEqual([...expected.keys()].sort());
      for (const [name, gradient] of expected) {
        const norm = Math.hypot(...gradient);
        expect(norm, name).toBeGreaterThan(0);
        const away = Math.hypot(...gradient.map((value, i) => value - actual.get(name)![i]!));
        expect(away / norm, name).toBeLessThan(1e-4);
      }
    });
  });
});

test("without a gradient nothing is accumulated", async () => {
  const learner = await resume();
  const [first] = await learner.softQ(recorded.texts, { ...recorded.options, withGradient: false });
  expect(first!.q[0]).toBeCloseTo(recorded.results[0]!.q[0]!, 5);
  expect((await learner.step({ learningRate: 1e-2 })).gradNorm).toBe(0);
});

test("detached, the Bellman errors train the heads and leave the policy alone, bit for bit", async () => {
  const learner = await resume();
  const { texts, options } = recorded;
  const read = async () => {
    const results = await learner.softQ(texts, { ...options, withGradient: false });
    const logProbs = await learner.logProbs(texts.map(({ prompt, response }) => ({ prompt, response })));
    return { q: results.map(({ q }) => [...q]), logProbs };
  };
  const before = await read();
  await learner.softQ(texts, { ...options, policyCoefficient: 0, detached: true });
  await learner.step({ learningRate: 1e-2 });
  const after = await read();
  expect(after.logProbs).toEqual(before.logProbs);
  expect(after.q).not.toEqual(before.q);
  await learner.softQ(texts, { ...options, policyCoefficient: 0 });
  await learner.step({ learningRate: 1e-2 });
  expect((await read()).logProbs).not.toEqual(before.logProbs);
});

test("one weight applies to all tokens, and without a weight it is 1", async () => {
  const learner = await resume();
  const { prompt, response, rewards } = recorded.texts[0]!;
  const options = { ...recorded.options, withGradient: false };
  const [none, one, list] = await learner.softQ(
    [{ prompt, response, rewards }, { prompt, response, rewards, weight: 1 }, recorded.texts[0]!],
    options,
  );
  // The same numbers, up to what a product rounds by the row's place in it.
  for (const { q } of [one!, list!]) {
    expect(q.length).toBe(none!.q.length);
    none!.q.forEach((value, i) => {
      expect(q[i]).toBeCloseTo(value, 6);
    });
  }
});

test("heads that are reset hold the policy, after other losses have moved it too", async () => {
  const learner = await resume();
  const { texts, options } = recorded;
  const klOf = async () => {
    const results = await learner.softQ(texts, { ...options, withGradient: false });
    return Math.max(...results.flatMap(({ policyLosses }) => [...policyLosses]));
  };
  expect(await klOf()).toBeGreaterThan(0.01);
  await learner.resetQHeads();
  expect(await klOf()).toBeLessThan(1e-5);
  await learner.tokenNll(texts.map(({ prompt, response }) => ({ prompt, response })));
  await learner.step({ learningRate: 1e-2 });
  expect(await klOf()).toBeGreaterThan(0.001);
  await learner.resetQHeads();
  expect(await klOf()).toBeLessThan(1e-5);
});

test("heads belong to the checkpoint and not to the exported model", async () => {
  const learner = await resume({ heads: undefined });
  expect(learner.info.heads).toBe("q");
  await inDirectory(async (directory) => {
    await learner.exportHuggingFace(directory);
    const bare = await Learner.load(directory, { dtype: "float32" });
    open.push(bare);
    expect(learner.info.parameters).toBe(
      bare.info.parameters + 2 * (learner.info.vocabSize + 1) * learner.info.hiddenSize,
    );
    await expect(bare.softQ(recorded.texts, recorded.options)).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringMatching(/no Q heads/),
    });
  });
  await inDirectory(async (directory) => {
    cpSync(fixture, directory, { recursive: true });
    const bare = await tinyLearner();
    open.push(bare);
    await bare.save(directory);
    await expect(Learner.resume(directory, { heads: "q", verify: false })).rejects.toMatchObject({
      code: "ERR_CONFIG",
    });
  });
});

test("invalid arguments are rejected by name", async () => {
  const learner = await resume();
  const { options, texts } = recorded;
  const refuse = async (text: object, message: RegExp) => {
    const spoilt = [texts[0]!, { ...texts[1]!, ...text }];
    await expect(learner.softQ(spoilt, options)).rejects.toMatchObject({
      code: "ERR_VALUE",
      message: expect.stringMatching(message),
    });
  };
  const { length } = texts[1]!.response;
  const spoiled = (value: number) => Array.from({ length }, (_, t) => (t === 5 ? value : 1));
  await refuse({ weight: spoiled(Number.NaN) }, /texts\[1\]\.weight\[5\]/);
  await refuse({ weight: spoiled(1e39) }, /texts\[1\]\.weight\[5\]/);
  await refuse({ weight: Number.POSITIVE_INFINITY }, /texts\[1\]\.weight/);
  await refuse({ weight: [1] }, /texts\[1\]\.weight needs one number for each of 11/);
  await refuse({ rewards: spoiled(Number.NaN) }, /texts\[1\]\.rewards\[5\]/);
  await refuse({ rewards: undefined }, /texts\[1\]\.rewards/);
  await refuse({ response: [99] }, /texts\[1\]\.response\[0\]/);
  const refuseOption = (option: object, message: RegExp) =>
    expect(learner.softQ(texts, { ...options, ...option })).rejects.toThrow(message);
  await refuseOption({ temperature: 0 }, /temperature/);
  await refuseOption({ discount: 2 }, /discount/);
  await refuseOption({ qCoefficient: -1 }, /qCoefficient/);
  await refuseOption({ policyCoefficient: Number.NaN }, /policyCoefficient/);
  await refuseOption({ withGradient: "no" }, /withGradient/);
  await expect(Learner.resume(fixture, { heads: "v" as never })).rejects.toMatchObject({
    code: "ERR_CONFIG",
  });
});
