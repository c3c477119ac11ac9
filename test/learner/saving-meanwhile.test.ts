/** What happens while a checkpoint is written, with a model that takes a while to write. */

import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { Learner } from "../../lib/learner/learner.ts";
import { codeOf, ids } from "../support/learner-checks.ts";
import { inDirectory, tinyConfig, tinyLearner } from "../support/tiny.ts";

/** With θ̄ and the moments, a checkpoint of it has 50 MB. */
const config = { ...tinyConfig, vocab_size: 6144, hidden_size: 256, num_hidden_layers: 1 };
const text = { prompt: ids("ab"), response: ids("cdef") };
const request = { tokens: ids("ab"), maxNewTokens: 2, seed: 1 };

let learner: Learner;

beforeAll(async () => {
  learner = await tinyLearner({ seed: 7 }, config);
  await learner.updateTarget(1);
  await train();
});

afterAll(() => learner.dispose());

async function train(): Promise<void> {
  await learner.tokenNll([text]);
  await learner.step({ learningRate: 0.01, targetRate: 0.1 });
}

const contents = (directory: string) =>
  new Map(readdirSync(directory).map((name) => [name, readFileSync(join(directory, name), "latin1")]));

/** The core writes this file last. */
const isWritten = (directory: string) => existsSync(join(directory, "learner.json"));

it("generates before the files are written", async () => {
  await inDirectory(async (directory) => {
    const [expected] = await learner.generate([request]);
    let beforeTheEnd = 0;
    // A busy machine may delay the generation until the files are written, but not every time.
    for (let round = 0; round < 10 && beforeTheEnd === 0; round++) {
      const path = join(directory, String(round));
      const saving = learner.save(path);
      const [generation] = await learner.generate([request]);
      if (!isWritten(path)) beforeTheEnd++;
      expect(generation!.tokens).toEqual(expected!.tokens);
      await saving;
      expect(isWritten(path)).toBe(true);
    }
    expect(beforeTheEnd).toBe(1);
  });
});

it("writes the same bytes while texts are generated and updates wait", async () => {
  await inDirectory(async (directory) => {
    const [quiet, meanwhile, after] = ["quiet", "meanwhile", "after"].map((name) => join(directory, name));
    await learner.save(quiet!);
    const saving = learner.save(meanwhile!);
    const steps = learner.generate([request, { ...request, weights: "target" }]).then(train);
    await Promise.all([saving, train(), steps]);
    expect(contents(meanwhile!)).toEqual(contents(quiet!));
    await learner.save(after!);
    const [earlier, later] = [quiet!, after!].map((path) => readFileSync(join(path, "model.safetensors")));
    expect(later!.equals(earlier!)).toBe(false);
  });
});

it("writes two checkpoints one after another", async () => {
  await inDirectory(async (directory) => {
    const paths = ["a", "b"].map((name) => join(directory, name));
    await Promise.all(paths.map((path) => learner.save(path)));
    expect(contents(paths[1]!)).toEqual(contents(paths[0]!));
  });
});

it("rejects with the code of a failed write, and continues", async () => {
  await inDirectory(async (directory) => {
    mkdirSync(join(directory, "model.safetensors", "in-the-way"), { recursive: true });
    const saving = codeOf(learner.save(directory));
    const generating = learner.generate([request]);
    expect(await saving).toBe("ERR_IO");
    expect(isWritten(directory)).toBe(false);
    expect((await generating)[0]!.tokens.length).toBeGreaterThan(0);
    await train();
  });
});

it("waits in dispose for a checkpoint that is being written", async () => {
  await inDirectory(async (directory) => {
    const model = await tinyLearner({}, config);
    const saving = model.save(directory);
    while (!existsSync(join(directory, "config.json"))) await sleep(1);
    await model.dispose();
    expect(isWritten(directory)).toBe(true);
    await saving;
  });
});
