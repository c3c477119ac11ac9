import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { errandsModel } from "../../lib/environments/errands/model.ts";
import {
  activeParameterCount,
  adapterCount,
  findShape,
  layerMatrices,
  parameterCount,
  publicModels,
} from "../../lib/estimate/shape.ts";
import { cachedModel, isCached, KNOWN_MODELS } from "../../lib/hub/resolve-model.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { inDirectory, tinyConfig } from "../support/tiny.ts";

const fixtures = join(import.meta.dirname, "../fixtures");

const folders = ["models", "io"].flatMap((kind) =>
  readdirSync(join(fixtures, kind), { withFileTypes: true })
    .map((entry) => join(fixtures, kind, entry.name))
    .filter((path) => existsSync(join(path, "config.json"))),
);

/** Elements of every tensor that a folder's safetensors files hold, by their headers. */
function storedTensors(folder: string): Map<string, number> {
  const sizes = new Map<string, number>();
  for (const file of readdirSync(folder).filter((name) => /^model.*\.safetensors$/.test(name))) {
    const bytes = readFileSync(join(folder, file));
    const length = Number(bytes.readBigUInt64LE(0));
    const header = JSON.parse(bytes.subarray(8, 8 + length).toString()) as Record<
      string,
      { shape?: number[] }
    >;
    for (const [name, { shape }] of Object.entries(header)) {
      // Of a vision-language model, the text part is loaded.
      if (shape !== undefined && !/^(model\.visual|mtp)\./.test(name))
        sizes.set(
          name,
          shape.reduce((product, side) => product * side, 1),
        );
    }
  }
  return sizes;
}

/** The directory of the same weights as a .gguf file. */
const pairOf = (name: string) => join(fixtures, "io", name.replace(/\.gguf$/, ""));

const sum = (values: Iterable<number>) => [...values].reduce((a, b) => a + b, 0);

describe("a model's shape", () => {
  const files = readdirSync(join(fixtures, "io")).filter(
    (name) => name.endsWith(".gguf") && existsSync(pairOf(name)),
  );
  test.each(files)("is read from a GGUF file as from the directory of the same model: %s", (name) => {
    expect(findShape(join(fixtures, "io", name))).toEqual(findShape(pairOf(name)));
  });

  test("has a code if a GGUF file is damaged", () => {
    return inDirectory((directory) => {
      const path = join(directory, "model.gguf");
      writeFileSync(path, "GGUF, or is it?");
      expect(() => findShape(path)).toThrow(expect.objectContaining({ code: "ERR_MODEL_FORMAT" }));
    });
  });

  test.each(folders)("counts the parameters that are stored in %s", (folder) => {
    const stored = storedTensors(folder);
    const shape = findShape(folder);
    expect(parameterCount(shape)).toBe(sum(stored.values()));
    const matrices = [...stored].filter(([name]) =>
      /((_proj(_\w+)?|mlp\.(gate|router)|router\.proj|shared_expert_gate|per_layer_\w*(gate|projection))\.weight|experts\.\w+_proj)$/.test(
        name,
      ),
    );
    expect(shape.layers * layerMatrices(shape)).toBe(sum(matrices.map(([, size]) => size)));
  });

  // What the models' own pages say, and so do their safetensors files.
  test.each([
    ["SmolLM2-135M-Instruct", 134_515_008],
    ["Qwen2.5-0.5B-Instruct", 494_032_768],
    ["Qwen2.5-1.5B-Instruct", 1_543_714_304],
    ["Llama-3.2-3B-Instruct", 3_212_749_824],
    ["Qwen2.5-3B-Instruct", 3_085_938_688],
    ["Qwen2.5-7B-Instruct", 7_615_616_512],
    ["QwQ-32B", 32_763_876_352],
  ])("counts the parameters of %s", (name, count) => {
    expect(parameterCount(publicModels[name]!)).toBe(count);
    expect(findShape(`models/${name}`)).toBe(publicModels[name]);
  });

  test("counts the parameters of a mixture of experts, and those that a token uses", () => {
    const config = {
      ...{ model_type: "qwen3_moe", hidden_size: 2048, intermediate_size: 6144, num_hidden_layers: 48 },
      ...{ num_attention_heads: 32, num_key_value_heads: 4, head_dim: 128, vocab_size: 151_936 },
      ...{ max_position_embeddings: 40_960, num_experts: 128, num_experts_per_tok: 8 },
      ...{ moe_intermediate_size: 768, mlp_only_layers: [], decoder_sparse_step: 1 },
    };
    // Qwen3-30B-A3B's page: 30.5B parameters, 3.3B activated.
    const shape = findShape({ config });
    expect(parameterCount(shape)).toBe(30_532_122_624);
    expect(activeParameterCount(shape)).toBe(3_353_032_704);
    const dense = findShape({ config: { ...config, mlp_only_layers: [0, 1], decoder_sparse_step: 2 } });
    expect(dense.experts?.layers).toBe(23);
    // Adapters are those of attention, of each expert, and of the layers without experts.
    const attention = 48 * (2048 + 4096 + 2 * (2048 + 512) + 4096 + 2048);
    const experts = 128 * 3 * (2048 + 768);
    expect(adapterCount(shape, { rank: 2 })).toBe(2 * (attention + 48 * experts));
    expect(adapterCount(dense, { rank: 2 })).toBe(2 * (attention + 23 * experts + 25 * 3 * (2048 + 6144)));
    const [up, ofExperts] = [["up_proj"], ["up_proj", "experts.up_proj", "experts.down_proj"]] as const;
    expect(adapterCount(dense, { rank: 1, targets: up })).toBe(experts * (23 / 3) + 25 * (2048 + 6144));
    expect(adapterCount(shape, { rank: 1, targets: ofExperts })).toBe((2 / 3) * 48 * experts);
    const llama = publicModels["SmolLM2-135M-Instruct"]!;
    expect(activeParameterCount(llama)).toBe(parameterCount(llama));
  });

  test("counts the parameters of experts with a shared one beside gated delta nets", () => {
    const config = {
      ...{ model_type: "qwen3_5_moe_text", hidden_size: 2048, num_hidden_layers: 40, vocab_size: 248_320 },
      ...{ num_attention_heads: 16, num_key_value_heads: 2, max_position_embeddings: 32_768 },
    };
    // Qwen3.5-35B-A3B: the parameters of transformers' model, and without the experts that a token
    // does not use.
    const shape = findShape({ config });
    expect(parameterCount(shape)).toBe(34_660_610_688);
    expect(activeParameterCount(shape)).toBe(3_454_988_928);
    const named = { ...config, model_type: undefined, architectures: ["Qwen3_5MoeForCausalLM"] };
    expect(findShape({ config: named })).toEqual(shape);
  });

  test("counts the parameters of experts with biases beside attention with sinks", () => {
    // gpt-oss-20b: the parameters of transformers' model, and without the experts that a token does not use.
    const config = {
      ...{ model_type: "gpt_oss", num_hidden_layers: 24, num_local_experts: 32, num_experts_per_tok: 4 },
      ...{ attention_bias: true, vocab_size: 201_088, hidden_size: 2880, intermediate_size: 2880 },
      ...{ num_attention_heads: 64, num_key_value_heads: 8, head_dim: 64, sliding_window: 128 },
      max_position_embeddings: 131_072,
    };
    const shape = findShape({ config });
    expect(parameterCount(shape)).toBe(20_914_757_184);
    expect(activeParameterCount(shape)).toBe(4_187_440_704);
    expect(shape.windows).toEqual(Array.from({ length: 12 }, () => 128));
    const named = { architectures: ["GptOssForCausalLM"], num_hidden_layers: 24, num_local_experts: 32 };
    expect(findShape({ config: named })).toEqual(shape);
  });

  test("counts the parameters of experts beside an MLP", () => {
    // The sizes of Gemma 4's 26B-A4B, and the parameters of transformers' model of them.
    const config = {
      ...{ model_type: "gemma4_text", hidden_size: 2816, intermediate_size: 2112, num_hidden_layers: 30 },
      ...{ num_attention_heads: 16, num_key_value_heads: 8, num_global_key_value_heads: 2, head_dim: 256 },
      ...{ global_head_dim: 512, attention_k_eq_v: true, hidden_size_per_layer_input: 0 },
      ...{ enable_moe_block: true, num_experts: 128, top_k_experts: 8, moe_intermediate_size: 704 },
    };
    const shape = findShape({ config });
    expect(parameterCount(shape)).toBe(25_233_141_790);
    expect(activeParameterCount(shape)).toBe(3_822_530_590);
  });

  test("counts the adapters that a learner counts, of experts and of layers that differ", async () => {
    for (const name of [
      "qwen3_moe",
      "qwen3_moe-step",
      "qwen3_5_moe",
      "gemma4",
      "gemma4-dense",
      "gpt_oss",
      "gemma4-moe",
    ]) {
      const directory = join(fixtures, "models", name);
      const shape = findShape(directory);
      const some = name.startsWith("g") ? (["k_proj", "v_proj"] as const) : undefined;
      const one = name === "gpt_oss" ? "o_proj" : "gate_proj"; // its experts cannot be adapted
      for (const targets of [undefined, [one], some ?? ["experts.down_proj", "v_proj"]] as const) {
        const adapter = { rank: 3, alpha: 3, ...(targets && { targets }) };
        await using learner = await Learner.load(directory, { dtype: "float32", adapter });
        expect(adapterCount(shape, adapter)).toBe(learner.info.trainableParameters);
      }
    }
  });

  test("counts what a learner counts", async () => {
    for (const config of [{ ...tinyConfig }, errandsModel().config]) {
      const learner = await Learner.create(config, { dtype: "float32" });
      expect(parameterCount(findShape({ config }))).toBe(learner.info.parameters);
      await learner.dispose();
    }
  });

  test.skipIf(!isCached(KNOWN_MODELS[0]!))("counts SmolLM2's parameters as its file has them", async () => {
    const learner = await Learner.load(cachedModel(KNOWN_MODELS[0]!));
    expect(parameterCount(publicModels["SmolLM2-135M-Instruct"]!)).toBe(learner.info.parameters);
    await learner.dispose();
  });

  test("counts the adapters as peft does", () => {
    expect(adapterCount(publicModels["Qwen2.5-7B-Instruct"]!, { rank: 8 })).toBe(20_185_088);
    const targets = ["q_proj", "v_proj"] as const;
    expect(adapterCount(publicModels["SmolLM2-135M-Instruct"]!, { rank: 8, targets })).toBe(460_800);
  });

  test("is rejected if config.json lacks a field or there is no model", async () => {
    await inDirectory((directory) => {
      mkdirSync(join(directory, "model"));
      const { hidden_size: _, ...config } = tinyConfig;
      writeFileSync(join(directory, "model", "config.json"), JSON.stringify(config));
      expect(() => findShape(join(directory, "model"))).toThrow(
        expect.objectContaining({
          code: "ERR_MODEL_FORMAT",
          message: expect.stringContaining("hidden_size"),
        }),
      );
      writeFileSync(join(directory, "model", "config.json"), '{"hidden_size": 3');
      expect(() => findShape(join(directory, "model"))).toThrow(
        expect.objectContaining({ code: "ERR_MODEL_FORMAT", message: expect.stringContaining(directory) }),
      );
      expect(() => findShape(join(directory, "none"))).toThrow(
        expect.objectContaining({ code: "ERR_MODEL_NOT_FOUND" }),
      );
    });
  });
});
