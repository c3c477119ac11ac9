/**
 * What every model family does in a learner: exports that transformers loads, and the load-balance
 * loss of experts.
 */

import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { Learner } from "../../lib/learner/learner.ts";
import type { AdapterOptions, LearnerOptions } from "../../lib/learner/options.ts";
import { testDevice } from "../support/device.ts";
import { peersPython } from "../support/peers.ts";
import { readSafetensors } from "../support/safetensors.ts";
import { inDirectory } from "../support/tiny.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const models = join(root, "test/fixtures/models");
const python = peersPython(["torch", "transformers"], "loading exports of every family with transformers");

test.runIf(python)(
  "transformers loads the export of every family, with the same bits and logits",
  async () => {
    const names = readdirSync(models).filter((name) => existsSync(join(models, name, "config.json")));
    // The vision tower of a wrapped model is left out of its export.
    const whole = names.filter((name) => !name.endsWith("-wrapped"));
    expect(whole).toEqual(
      expect.arrayContaining([
        ...[
          "gemma3",
          "gemma4",
          "gemma4-dense",
          "gemma4-moe",
          "gpt_oss",
          "llama",
          "olmo3",
          "qwen3_5",
          "qwen3_5_moe",
        ],
        ...["qwen3_moe", "smollm3"],
      ]),
    );
    await inDirectory(async (directory) => {
      const pairs: string[] = [];
      for (const name of whole) {
        await using learner = await Learner.load(join(models, name), { dtype: "float32" });
        await learner.exportHuggingFace(join(directory, name));
        pairs.push(join(directory, name), join(models, name));
      }
      const printed = execFileSync(python!, [join(root, "scripts/fixtures/check_export.py"), ...pairs], {
        encoding: "utf8",
        env: { ...process.env, HF_HUB_OFFLINE: "1" },
      });
      expect(printed.match(/ and so do the logits$/gm)).toHaveLength(whole.length);
    });
  },
);

const withPeft = peersPython(
  ["torch", "transformers", "peft"],
  "loading exported adapters of experts with peft",
);

test.runIf(withPeft)(
  "peft loads the adapters of experts, with the logits of the merged model",
  async () => {
    const cases: [name: string, targets: AdapterOptions["targets"]][] = [
      ["qwen3_moe", undefined],
      ["qwen3_moe", ["q_proj", "experts.gate_proj", "experts.up_proj", "experts.down_proj"]], // each expert's matrices
      ["qwen3_moe", ["experts.gate_proj", "experts.up_proj"]],
      ["qwen3_moe-step", ["o_proj", "up_proj"]],
      ["qwen3_5_moe", undefined],
      ["qwen3_5_moe", ["experts.down_proj", "shared_expert.gate_proj"]],
      ["qwen3_5_moe", ["up_proj", "experts.gate_proj", "in_proj_qkv"]],
      ["qwen3-yarn", undefined],
      ["gemma4", undefined],
      ["gemma4-dense", ["k_proj", "v_proj", "down_proj"]],
      ["gpt_oss", undefined],
      ["gemma4-moe", undefined],
      ["gemma4-moe", ["experts.up_proj", "experts.down_proj"]],
    ];
    await inDirectory(async (directory) => {
      const paths: string[] = [];
      for (const [i, [name, targets]] of cases.entries()) {
        const adapter: AdapterOptions = { rank: 2, alpha: 6, ...(targets && { targets }) };
        await using learner = await Learner.load(join(models, name), { dtype: "float32", adapter });
        for (let step = 0; step < 3; step++) {
          await learner.tokenNll(texts.map((text) => ({ ...text, weight: 1 })));
          await learner.step({ learningRate: 0.1 });
        }
        await learner.exportHuggingFace(join(directory, `merged-${i}`));
        await learner.exportAdapter(join(directory, `adapter-${i}`));
        paths.push(join(directory, `adapter-${i}`), join(directory, `merged-${i}`), join(models, name));
      }
      const printed = execFileSync(withPeft!, [join(root, "scripts/fixtures/check_adapter.py"), ...paths], {
        encoding: "utf8",
        env: { ...process.env, HF_HUB_OFFLINE: "1" },
      });
      expect(printed.match(/: peft uses its \d+ tensors/gm)).toHaveLength(cases.length);
    });
  },
  120_000,
);

const texts = [
  { prompt: [5, 9, 11], response: [3, 40, 41, 42, 8] },
  { prompt: [90], response: [12, 13, 14, 96, 2, 7, 7] },
];

test("Gemma 4 has no Q heads, whose logits would be capped, and no classifier", async () => {
  const code = "ERR_CONFIG";
  const model = join(models, "gemma4");
  await expect(Learner.load(model, { dtype: "float32", heads: "q" })).rejects.toMatchObject({
    ...{ code, message: expect.stringContaining("final_logit_softcapping") },
  });
  await using learner = await Learner.load(model, { dtype: "float32", heads: "value" });
  await inDirectory(async (directory) => {
    await expect(learner.exportRewardModel(join(directory, "out"))).rejects.toMatchObject({ code });
  });
});

test("a new model's norms and scales are 1", async () => {
  const config = JSON.parse(readFileSync(join(models, "gemma4-moe/config.json"), "utf8"));
  await using learner = await Learner.create(config, { dtype: "float32" });
  await inDirectory(async (directory) => {
    await learner.exportHuggingFace(directory);
    const tensors = [...readSafetensors(join(directory, "model.safetensors"))];
    const ones = tensors.filter(([, { values }]) => values.every((value) => value === 1));
    // Two layers: seven norms, those of queries and keys, two scales of the router, the layer's number.
    expect(ones).toHaveLength(2 * (7 + 2 + 2 + 1) + 1);
  });
});

test("completions of Gemma 4 and gpt-oss have the same bits alone, in company and when scored", async () => {
  for (const name of ["gemma4", "gemma4-dense", "gemma4-moe", "gpt_oss"]) {
    await using learner = await Learner.load(join(models, name), { dtype: "float32" });
    const prompts = [[5, 9, 11], [90], Array.from({ length: 30 }, (_, i) => (7 * i) % 97)];
    const requests = prompts.map((tokens, i) => ({ tokens, maxNewTokens: 25, seed: i }));
    const together = await learner.generate(requests);
    for (const [i, request] of requests.entries()) {
      const [alone] = await learner.generate([request]);
      expect([...alone!.tokens]).toEqual([...together[i]!.tokens]);
      expect([...alone!.logProbs]).toEqual([...together[i]!.logProbs]);
      const [scored] = await learner.logProbs([{ prompt: request.tokens, response: [...alone!.tokens] }]);
      for (const [j, value] of scored!.entries()) expect(value).toBeCloseTo(alone!.logProbs[j]!, 4);
    }
  }
});

test("experts of gpt-oss cannot be adapted", async () => {
  const adapter = { rank: 2, alpha: 2, targets: ["gate_proj", "up_proj", "down_proj"] as const };
  await expect(Learner.load(join(models, "gpt_oss"), { dtype: "float32", adapter })).rejects.toMatchObject({
    ...{ code: "ERR_VALUE", message: expect.stringContaining("gate_proj") },
  });
});

test.each(["gpt_oss", "gemma4-moe"])("a checkpoint of %s resumes with the same bits", async (name) => {
  await inDirectory(async (directory) => {
    const step = async (learner: Learner) => {
      const losses = await learner.tokenNll(texts.map((text) => ({ ...text, weight: 1 })));
      await learner.step({ learningRate: 0.01 });
      return losses.map((loss) => [...loss]);
    };
    await using learner = await Learner.load(join(models, name), { dtype: "float32" });
    await step(learner);
    await learner.save(join(directory, "saved"));
    await using resumed = await Learner.resume(join(directory, "saved"), { dtype: "float32" });
    expect([await step(resumed), await step(resumed)]).toEqual([await step(learner), await step(learner)]);
  });
});

/** The pending gradients of a mixture of experts after tokenNll, by name. */
async function gradientsWith(options: LearnerOptions, weight: number): Promise<Map<string, Float32Array>> {
  await using learner = await Learner.load(join(models, "qwen3_moe"), {
    dtype: "float32",
    device: testDevice,
    ...options,
  });
  await learner.tokenNll(texts.map((text) => ({ ...text, weight })));
  return await inDirectory(async (directory) => {
    await learner.save(directory);
    const pending = readSafetensors(join(directory, "gradients.safetensors"));
    return new Map([...pending].map(([name, { values }]) => [name, values]));
  });
}

/** |a - b| over |b|, of all gradients together. */
function difference(a: Map<string, Float32Array>, b: Map<string, Float32Array>): number {
  let [off, all] = [0, 0];
  for (const [name, values] of b) {
    for (const [i, value] of values.entries()) {
      off += (a.get(name)![i]! - value) ** 2;
      all += value ** 2;
    }
  }
  return Math.sqrt(off / all);
}

const minus = (a: Map<string, Float32Array>, b: Map<string, Float32Array>) =>
  new Map([...a].map(([name, values]) => [name, values.map((value, i) => value - b.get(name)![i]!)]));
const times = (a: Map<string, Float32Array>, factor: number) =>
  new Map([...a].map(([name, values]) => [name, values.map((value) => value * factor)]));

test("the load-balance loss adds a gradient in proportion to its coefficient and the tokens' weights", async () => {
  const none = await gradientsWith({}, 0.5);
  const balance = minus(await gradientsWith({ expertBalance: 0.5 }, 0.5), none);
  const router = "model.layers.0.mlp.gate.weight";
  expect(Math.hypot(...balance.get(router)!)).toBeGreaterThan(1e-3);
  // The loss is above the routers: neither the last layer's experts nor the head see it.
  for (const [name, values] of balance)
    if (name === "lm_head.weight" || name.startsWith("model.layers.2.mlp.experts."))
      expect([name, values.every((value) => value === 0)]).toEqual([name, true]);
  const twice = minus(await gradientsWith({ expertBalance: 1 }, 0.5), none);
  expect(difference(twice, times(balance, 2))).toBeLessThan(1e-4);
  // tokenNll's gradient doubles with the weights, and so does this one.
  const heavier = minus(await gradientsWith({ expertBalance: 0.5 }, 1), times(none, 2));
  expect(difference(heavier, times(balance, 2))).toBeLessThan(1e-4);
  // The fixture's router_aux_loss_coef.
  const own = await gradientsWith({ expertBalance: "model" }, 0.5);
  expect(own).toEqual(await gradientsWith({ expertBalance: 0.001 }, 0.5));
  expect(difference(own, none)).toBeGreaterThan(0);
});
