/** A learner on a GPU beside one on the CPU: the same text, logits and losses, and checkpoints of either. */

import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import type { LearnerDType } from "../../lib/base/dtype.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { testDevice } from "../support/device.ts";
import { inDirectory, tinyLearner } from "../support/tiny.ts";

const models = fileURLToPath(new URL("../fixtures/models", import.meta.url));
const names = readdirSync(models).filter((name) => existsSync(join(models, name, "config.json")));

/** The largest difference of two lists of rows. */
function distance(a: readonly Float32Array[], b: readonly Float32Array[]): number {
  expect(a.map((row) => row.length)).toEqual(b.map((row) => row.length));
  return Math.max(...a.flatMap((row, i) => Array.from(row, (value, j) => Math.abs(value - b[i]![j]!))));
}

const load = (name: string, device: string, dtype: LearnerDType = "float32") =>
  Learner.load(join(models, name), { dtype, device });

const prompts = [[5, 9, 11, 2], [90], Array.from({ length: 30 }, (_, i) => (7 * i) % 97)];
const texts = prompts.map((prompt, i) => ({ prompt, response: [3, 40 + i, 41, 8] }));

describe.runIf(testDevice === "cuda")("on a GPU", () => {
  test("draws what the CPU draws", async () => {
    await using onCpu = await tinyLearner({ seed: 7, device: "cpu" });
    await using onGpu = await tinyLearner({ seed: 7, device: "cuda" });
    const settings = [
      { temperature: 0 },
      { temperature: 1 },
      { temperature: 0.6, topK: 20 },
      { temperature: 1.5, topP: 0.8 },
      { temperature: 1, minP: 0.1 },
      { temperature: 1, topK: 50, topP: 0.9, minP: 0.02 },
      { temperature: 1, repetitionPenalty: 1.3 },
      { temperature: 1, forbidden: [65, 66, 67] },
      { temperature: 1, grammar: { regex: "([0-9]{2}[a-z]{3})*" } },
    ];
    const requests = settings.flatMap((setting, i) =>
      [0, 1, 2].map((seed) => ({
        ...setting,
        seed,
        tokens: [..."Draw this: "].map((letter) => letter.charCodeAt(0)),
        maxNewTokens: 20 + 5 * i,
      })),
    );
    const [expected, got] = await Promise.all([onCpu.generate(requests), onGpu.generate(requests)]);
    expect(got.map(({ tokens, finishReason }) => ({ tokens, finishReason }))).toEqual(
      expected.map(({ tokens, finishReason }) => ({ tokens, finishReason })),
    );
    const logProbs = (all: typeof got) => all.map((generation) => generation.logProbs);
    expect(distance(logProbs(got), logProbs(expected))).toBeLessThan(1e-3);
  });

  test.each(names)("%s has the CPU's logits, losses and greedy completions", async (name) => {
    await using cpu = await load(name, "cpu");
    await using gpu = await load(name, "cuda");
    expect(distance(await gpu.logits(prompts), await cpu.logits(prompts))).toBeLessThan(1e-3);
    expect(distance(await gpu.tokenNll(texts), await cpu.tokenNll(texts))).toBeLessThan(1e-3);
    const requests = prompts.map((tokens) => ({ tokens, maxNewTokens: 24, temperature: 0 }));
    const [expected, got] = await Promise.all([cpu.generate(requests), gpu.generate(requests)]);
    expect(got.map(({ tokens }) => [...tokens])).toEqual(expected.map(({ tokens }) => [...tokens]));
  });

  // Rounded differently in every layer: as far from float32 as the CPU's bfloat16.
  test.each(names)("%s in bfloat16 is as close to float32 as on the CPU", async (name) => {
    await using cpu = await load(name, "cpu", "bfloat16");
    await using gpu = await load(name, "cuda", "bfloat16");
    await using exact = await load(name, "cpu");
    const expected = await exact.tokenNll(texts);
    const mean = (rows: readonly Float32Array[]) => {
      const errors = rows.flatMap((row, i) => Array.from(row, (x, j) => Math.abs(x - expected[i]![j]!)));
      return errors.reduce((sum, error) => sum + error, 0) / errors.length;
    };
    const [onCpu, onGpu] = [mean(await cpu.tokenNll(texts)), mean(await gpu.tokenNll(texts))];
    expect(onGpu).toBeLessThan(2 * onCpu + 0.01);
  });

  // Its B is zero. Families unlike Llama add its products to a float32 stream.
  test.each(names)("%s with a new adapter in bfloat16 generates as without it", async (name) => {
    const adapter = { rank: 2, alpha: 4, targets: ["q_proj", "o_proj"] } as const;
    await using plain = await load(name, "cuda", "bfloat16");
    await using adapted = await Learner.load(join(models, name), {
      dtype: "bfloat16",
      device: "cuda",
      adapter,
    });
    const requests = prompts.map((tokens) => ({ tokens, maxNewTokens: 8, temperature: 0 }));
    const [expected, got] = await Promise.all([plain.generate(requests), adapted.generate(requests)]);
    expect(got.map(({ tokens }) => [...tokens])).toEqual(expected.map(({ tokens }) => [...tokens]));
  });

  test("a checkpoint of either device continues on the other", async () => {
    await inDirectory(async (directory) => {
      const train = async (learner: Learner, steps: number) => {
        for (let step = 0; step < steps; step++) {
          await learner.tokenNll(texts.map((text) => ({ ...text, weight: 1 / 12 })));
          await learner.step({ learningRate: 1e-2 });
          await learner.updateTarget(0.1);
        }
      };
      const begin = async (device: string) => {
        const learner = await load("llama", device);
        await learner.updateTarget(1);
        return learner;
      };
      await using expected = await begin("cpu");
      await train(expected, 6);
      const after = await expected.logits(prompts);
      for (const [first, second] of [
        ["cpu", "cuda"],
        ["cuda", "cpu"],
      ] as const) {
        const place = join(directory, first);
        await using begun = await begin(first);
        await train(begun, 3);
        await begun.save(place);
        await using resumed = await Learner.resume(place, { dtype: "float32", device: second });
        await train(resumed, 3);
        expect(distance(await resumed.logits(prompts), after)).toBeLessThan(1e-3);
      }
    });
  });
});
