import { existsSync, readdirSync, readFileSync, renameSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { Learner } from "../../lib/learner/learner.ts";
import type { AdapterOptions } from "../../lib/learner/options.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { testDevice } from "../support/device.ts";
import { errandEnvironment } from "../support/errand.ts";
import { codeOf, ids } from "../support/learner-checks.ts";
import { inDirectory, tinyConfig, tinyLearner } from "../support/tiny.ts";

const adapter: AdapterOptions = { rank: 4, alpha: 8 };
const fixture = fileURLToPath(new URL("../fixtures/models/llama", import.meta.url));
const text = { prompt: ids("ab"), response: ids("cdef") };

async function train(model: Learner, steps: number): Promise<void> {
  await model.updateTarget(0); // θ̄ begins before the first step
  for (let i = 0; i < steps; i++) {
    await model.tokenNll([text]);
    await model.step({ learningRate: 0.02 });
    await model.tokenKl([{ student: text.prompt, teacher: ids("xy"), response: text.response, weight: 0.1 }]);
    await model.step({ learningRate: 0.001, moments: "kl" });
    await model.updateTarget(0.1);
  }
}

async function observe(model: Learner) {
  const request = { tokens: ids("ab"), maxNewTokens: 12 };
  const generations = await model.generate([request, { ...request, weights: "target" }]);
  return {
    tokens: generations.map(({ tokens }) => tokens),
    logits: [
      ...(await model.logits([ids("abcd")])),
      ...(await model.logits([ids("abcd")], { weights: "target" })),
    ],
    distance: await model.targetDistance(),
  };
}

describe("a learner with an adapter", () => {
  it("counts trainable parameters separately", async () => {
    await using whole = await tinyLearner();
    await using model = await tinyLearner({ adapter });
    const { hidden_size: h, intermediate_size: f, num_hidden_layers: layers } = tinyConfig;
    const sides = 2 * (h + h) + 2 * (h + h / 2) + 3 * (h + f); // q and o, k and v, gate, up and down
    expect(model.info.trainableParameters).toBe(layers * 4 * sides);
    expect(model.info.parameters).toBe(whole.info.parameters + layers * 4 * sides);
    expect(whole.info.trainableParameters).toBe(whole.info.parameters);
    expect((await model.logits([ids("abc")]))[0]).toEqual((await whole.logits([ids("abc")]))[0]);
  });

  it.each(["float32", "bfloat16"] as const)("learns in %s, and generates what it scores", async (dtype) => {
    await using model = await Learner.load(fixture, { adapter, dtype, device: testDevice });
    const prompt = [5, 42, 17];
    const losses: number[] = [];
    for (let i = 0; i < 30; i++) {
      const [nll] = await model.tokenNll([{ prompt, response: [8, 3, 90, 3, 61] }]);
      losses.push(nll!.reduce((sum, loss) => sum + loss, 0));
      await model.step({ learningRate: 0.02 });
    }
    expect(losses.at(-1)).toBeLessThan(0.5 * losses[0]!);
    const [generation] = await model.generate([{ tokens: prompt, maxNewTokens: 8, seed: 3 }]);
    const [scored] = await model.logProbs([{ prompt, response: generation!.tokens }]);
    for (const [i, logProb] of generation!.logProbs.entries()) {
      expect(Math.abs(logProb - scored![i]!)).toBeLessThan(dtype === "float32" ? 1e-4 : 0.1);
    }
  });

  it("takes the steps of an NLAC training", async () => {
    await using model = await tinyLearner(
      { adapter, threads: 1, seed: 3 },
      { ...tinyConfig, max_position_embeddings: 4096 },
    );
    const [before] = await model.logits([ids("abc")]);
    const run = memoryRun();
    const result = await trainNlac({
      model,
      environment: errandEnvironment({ turns: 1 }),
      run,
      config: {
        iterations: 1,
        episodesPerIteration: 3,
        updatesPerIteration: 3,
        batchSize: 4,
        criticLearningRate: 1e-2,
        policyLearningRate: 1e-2,
        targetRate: 0.1,
        maxActionTokens: 40,
        maxCriticTokens: 40,
      },
    });
    expect(result.updates).toBe(3);
    expect(run.rows.some(({ values }) => Number.isFinite(values["loss/l1"]))).toBe(true);
    expect((await model.logits([ids("abc")]))[0]).not.toEqual(before);
    expect(await model.targetDistance()).toBeGreaterThan(0);
  });
});

describe("saving it", () => {
  it("trains a value head beside it, and refers to the model without it", async () => {
    await using plain = await tinyLearner();
    await using model = await tinyLearner({ adapter, heads: "value" });
    await using bare = await tinyLearner({ adapter });
    expect(model.info.trainableParameters).toBe(bare.info.trainableParameters + tinyConfig.hidden_size + 1);
    await model.keepReference();
    const [oldLogProbs] = await model.logProbs([text]);
    const taught = {
      ...text,
      oldLogProbs: oldLogProbs!,
      ...{ advantages: [1, 1, 1, 1], returns: [1, 1, 1, 1], oldValues: [0, 0, 0, 0] },
    };
    for (let i = 0; i < 8; i++) {
      await model.tokenSurrogate([taught], { value: { coefficient: 1 } });
      await model.step({ learningRate: 0.02 });
    }
    const [referred] = await model.logProbs([text], { weights: "reference" });
    const [base] = await plain.logProbs([text]);
    expect([...referred!]).toEqual([...base!]);
    const [now] = await model.logProbs([text]);
    for (const [i, before] of base!.entries()) expect(now![i]).toBeGreaterThan(before);
    const [values] = await model.values([text]);
    for (const value of values!) expect(value).toBeGreaterThan(0.3);
  });

  it("trains Q heads beside it, which start as the policy and can be reset to it", async () => {
    await using model = await tinyLearner({ adapter, heads: "q" });
    await model.updateTarget(1);
    const episode = { ...text, rewards: [0, 0, 0, 1] };
    const options = { temperature: 0.5, qCoefficient: 1, policyCoefficient: 1 };
    const largest = async () => {
      const [result] = await model.softQ([episode], { ...options, withGradient: false });
      const { policyLosses, q } = result!;
      return { kl: Math.max(...policyLosses), q: q.at(-1)! };
    };
    const before = await largest();
    expect(before.kl).toBeLessThan(1e-5);
    for (let i = 0; i < 12; i++) {
      await model.softQ([episode], options);
      await model.step({ learningRate: 0.02 });
      await model.updateTarget(0.5);
    }
    const after = await largest();
    expect(Math.abs(after.q - 1)).toBeLessThan(Math.abs(before.q - 1));
    expect(after.kl).toBeGreaterThan(1e-4);
    await model.resetQHeads();
    expect((await largest()).kl).toBeLessThan(1e-5);
  });

  it("continues bit for bit; a created base model is in the checkpoint", async () => {
    await inDirectory(async (directory) => {
      await using model = await tinyLearner({ adapter, seed: 3 });
      await train(model, 2);
      await model.save(join(directory, "saved"));
      renameSync(join(directory, "saved"), join(directory, "moved"));
      await using resumed = await Learner.resume(join(directory, "moved"), {
        dtype: "float32",
        device: testDevice,
      });
      await train(model, 2);
      await train(resumed, 2);
      expect(await observe(resumed)).toEqual(await observe(model));
    });
  });

  it("continues only with the model that it was loaded on", async () => {
    await inDirectory(async (directory) => {
      const [base, saved] = [join(directory, "base"), join(directory, "saved")];
      {
        await using whole = await tinyLearner({ seed: 1 });
        await whole.exportHuggingFace(base);
      }
      await using model = await Learner.load(base, { adapter, dtype: "float32" });
      await train(model, 2);
      await model.save(saved);
      expect(readdirSync(saved)).not.toContain("model.safetensors");
      expect(existsSync(join(saved, "base"))).toBe(false);

      await using resumed = await Learner.resume(saved, { dtype: "float32", adapter });
      expect(resumed.encode("a")).toEqual([97]);
      await train(model, 2);
      await train(resumed, 2);
      expect(await observe(resumed)).toEqual(await observe(model));

      expect(await codeOf(Learner.resume(saved, { adapter: { ...adapter, rank: 2 } }))).toBe("ERR_CONFIG");
      expect(await codeOf(Learner.load(saved))).toBe("ERR_MODEL_FORMAT");

      const elsewhere = join(directory, "elsewhere");
      renameSync(base, elsewhere);
      const error = await Learner.resume(saved, { base: join(directory, "nowhere") }).catch((e) => e);
      expect(error.code).toBe("ERR_CHECKPOINT");
      expect(error.message).toContain(`the model ${base}, which was not found`);
      expect(error.message).toContain(`no model "${join(directory, "nowhere")}"`);
      {
        await using found = await Learner.resume(saved, { dtype: "float32", base: elsewhere });
        await train(found, 2);
        expect((await found.logits([ids("abcd")]))[0]).toEqual((await model.logits([ids("abcd")]))[0]);
        // From now on it is found there at once.
        await found.save(join(directory, "again"));
      }
      expect(await codeOf(Learner.resume(join(directory, "again")))).toBe("no error");
      await using other = await tinyLearner({ seed: 2 });
      await other.exportHuggingFace(base);
      expect(await codeOf(Learner.resume(saved))).toBe("ERR_CHECKPOINT");
    });
  });

  it("contains a base that was a checkpoint, which may be deleted before it is resumed", () =>
    inDirectory(async (directory) => {
      const earlier = join(directory, "earlier");
      {
        await using whole = await tinyLearner();
        await whole.save(earlier);
      }
      const kept = join(directory, "kept");
      await using model = await Learner.load(earlier, { adapter, dtype: "float32", threads: 1 });
      await train(model, 2);
      await model.save(kept);
      renameSync(earlier, join(directory, "pruned"));
      await using resumed = await Learner.resume(kept, { dtype: "float32", threads: 1 });
      expect((await resumed.logits([ids("abcd")]))[0]).toEqual((await model.logits([ids("abcd")]))[0]);
      // Beside a whole model an adapter would not be found.
      expect(await codeOf(model.save(join(directory, "pruned")))).toBe("ERR_VALUE");
    }));

  it("exports the merged model, and the adapter alone for peft", async () => {
    await inDirectory(async (directory) => {
      await using model = await tinyLearner({ adapter: { ...adapter, targets: ["v_proj", "q_proj"] } });
      await train(model, 3);
      await model.exportHuggingFace(join(directory, "merged"));
      await using merged = await Learner.load(join(directory, "merged"), { dtype: "float32" });
      expect(merged.info.trainableParameters).toBe(merged.info.parameters);
      const [expected] = await model.logits([ids("abc")]);
      const [logits] = await merged.logits([ids("abc")]);
      for (const [i, value] of logits!.entries()) expect(Math.abs(value - expected![i]!)).toBeLessThan(1e-4);

      await model.exportAdapter(join(directory, "adapter"));
      const config = JSON.parse(readFileSync(join(directory, "adapter", "adapter_config.json"), "utf8"));
      expect(config).toMatchObject({ r: 4, lora_alpha: 8, target_modules: ["q_proj", "v_proj"] });
      expect(readdirSync(join(directory, "adapter"))).toContain("adapter_model.safetensors");
      expect(await codeOf(merged.exportAdapter(join(directory, "none")))).toBe("ERR_VALUE");
      expect(existsSync(join(directory, "none"))).toBe(false);
    });
  });
});

it.each([
  { rank: 0, alpha: 1 },
  { rank: 1.5, alpha: 1 },
  { alpha: 1 },
  { rank: 1, alpha: 0 },
  { rank: 1, alpha: Number.NaN },
  { rank: 1, alpha: 1, targets: [] },
  { rank: 1, alpha: 1, targets: ["lm_head"] },
  { rank: 1, alpha: 1, targets: "q_proj" },
  { rank: 1, alpha: 1, dropout: 0.1 },
  7,
])("refuses %j", async (bad) => {
  expect(await codeOf(tinyLearner({ adapter: bad as never }))).toBe("ERR_CONFIG");
});
