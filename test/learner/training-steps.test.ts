import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, test } from "vitest";
import { Learner } from "../../lib/learner/learner.ts";
import { testDevice } from "../support/device.ts";
import { tinyConfig, tinyLearner } from "../support/tiny.ts";

const fixtures = fileURLToPath(new URL("../fixtures", import.meta.url));

/** Recorded by scripts/fixtures/training.py. */
const recorded = JSON.parse(readFileSync(`${fixtures}/training/adamw.json`, "utf8")) as {
  settings: {
    learningRate: number;
    weightDecay: number;
    maxGradNorm: number;
    steps: number;
  };
  models: Record<
    string,
    {
      /** In place of the settings'. */
      learningRate?: number;
      texts: { prompt: number[]; response: number[] }[];
      losses: number[];
      logits: number[];
    }
  >;
};

const open: Learner[] = [];
afterEach(() => Promise.all(open.splice(0).map((learner) => learner.dispose())));

async function load(name: string, gradientCheckpointing = false): Promise<Learner> {
  const learner = await Learner.load(`${fixtures}/models/${name}`, {
    dtype: "float32",
    device: testDevice,
    gradientCheckpointing,
  });
  open.push(learner);
  return learner;
}

/** Mean over texts of the mean loss a token, as the weights of the texts make it. */
async function lossOf(learner: Learner, name: string): Promise<number> {
  const { texts } = recorded.models[name]!;
  const losses = await learner.tokenNll(
    texts.map((text) => ({ ...text, weight: 1 / (text.response.length * texts.length) })),
  );
  const mean = (values: Float32Array) => values.reduce((sum, value) => sum + value, 0) / values.length;
  return losses.reduce((sum, loss) => sum + mean(loss), 0) / losses.length;
}

describe.each(Object.keys(recorded.models))("%s", (name) => {
  test.each([false, true])(
    "50 steps follow transformers and torch's AdamW to 1e-4 (recompute %s)",
    async (recompute) => {
      const { losses, logits, texts, learningRate } = recorded.models[name]!;
      const { steps, ...settings } = recorded.settings;
      const options = { ...settings, ...(learningRate !== undefined && { learningRate }) };
      const learner = await load(name, recompute);
      let largest = 0;
      for (let step = 0; step < steps; step++) {
        const loss = await lossOf(learner, name);
        largest = Math.max(largest, Math.abs(loss - losses[step]!) / losses[step]!);
        expect((await learner.step(options)).skipped).toBe(false);
      }
      expect(largest).toBeLessThan(1e-4);
      expect(losses.at(-1)).toBeLessThan(losses[0]! - 0.1); // it did learn
      const [after] = await learner.logits([[...texts[0]!.prompt, ...texts[0]!.response]]);
      const difference = Math.max(...Array.from(after!, (value, i) => Math.abs(value - logits[i]!)));
      expect(difference).toBeLessThan(1e-3);
      console.log(
        `${name}: largest relative difference of the loss ${largest.toExponential(1)}, of the logits ${difference.toExponential(1)}`,
      );
    },
  );
});

test("gradients reach θ only, and θ̄ moves by τ exactly", async () => {
  const learner = await load("llama");
  const [text] = recorded.models.llama!.texts;
  const ids = [...text!.prompt, ...text!.response];
  const before = (await learner.logits([ids], { weights: "target" }))[0]!;
  await learner.tokenKl([{ student: [1, 2], teacher: [...text!.prompt], response: text!.response }]);
  await learner.step({ learningRate: 1e-2 });
  expect((await learner.logits([ids], { weights: "target" }))[0]).toEqual(before);
  expect((await learner.logits([ids]))[0]).not.toEqual(before);
  const behind = await learner.targetDistance();
  await learner.updateTarget(0.25);
  expect((await learner.targetDistance()) / behind).toBeCloseTo(0.75, 4);
  await learner.updateTarget(1);
  expect(await learner.targetDistance()).toBe(0);
});

test("two threads add the gradient of an embedding up in the same order every time", async () => {
  // Three ids over and over, in a stream long enough to be split: their rows are added to by both
  // threads.
  const ids = Array.from({ length: 1200 }, (_, i) => [3, 5, 7][(i * 7 + (i >> 3)) % 3]!);
  const outcomes = new Set<string>();
  for (let trial = 0; trial < 6; trial++) {
    const learner = await tinyLearner(
      { threads: 2, microBatchTokens: 4096 },
      { ...tinyConfig, max_position_embeddings: 4096 },
    );
    open.push(learner);
    await learner.tokenNll([{ prompt: ids.slice(0, 600), response: ids.slice(600) }]);
    await learner.step({ learningRate: 1e-2, maxGradNorm: 0 });
    const [logits] = await learner.logits([[3, 5, 7, 3, 5, 7]]);
    outcomes.add(Buffer.from(logits!.buffer).toString("base64"));
  }
  expect(outcomes.size).toBe(1);
});
