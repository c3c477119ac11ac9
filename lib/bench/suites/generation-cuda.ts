/**
 * Decoding on a GPU with a model of Qwen2.5-7B's shape and random weights, in bfloat16. Only
 * decoding is timed: the prompts are already in the KV cache. The limit is to read, per generated
 * token, the weights once for all sequences and each sequence's keys and values at copy speed.
 */

import { Learner } from "../../learner/learner.ts";
import { randomBits } from "../inputs.ts";
import { modelConfigs } from "../model-configs.ts";
import { countElements, modelShapes } from "../model-shapes.ts";
import type { Case, Job, Subject } from "../suite.ts";

type Parameters = {
  /** Config for AutoModelForCausalLM.from_config and Learner.create. */
  config: Record<string, unknown>;
  texts: number;
  /** Tokens of a prompt, and generated tokens. */
  prompt: number;
  written: number;
  /** Bytes that a copy moves in the time of the limit. */
  bytes: number;
  /** Capacity for prompts and one call's tokens with a margin: growing the cache would copy it. */
  cacheBytes: number;
};

const config = modelConfigs["Qwen2.5-7B"];

export function cudaCases(): Case[] {
  // Each token reads one row of the embedding.
  const shapes = modelShapes("Qwen2.5-7B").slice(1);
  const weightBytes = 2 * countElements(shapes);
  const { num_hidden_layers: layers, num_key_value_heads: heads } = config;
  const tokenBytes = 2 * layers * 2 * heads * (config.hidden_size / config.num_attention_heads);
  return [
    { texts: 1, prompt: 200, written: 100 },
    { texts: 32, prompt: 200, written: 100 },
    { texts: 256, prompt: 1024, written: 32 },
  ].map(({ texts, prompt, written }) => {
    const bytes = written * (weightBytes + texts * (prompt + written / 2) * tokenBytes);
    const cacheBytes = Math.ceil(1.1 * texts * (prompt + written) * tokenBytes) + 2 ** 30;
    const parameters: Parameters = { config, texts, prompt, written, bytes, cacheBytes };
    const row = { resultBytes: null };
    return {
      id: `7b-${texts}-at-once`,
      title: `Qwen2.5-7B's shape · ${texts} at once, prompt ${prompt}, ${written} generated`,
      parameters,
      timing: { warmup: 2, calls: 3, seconds: 0 },
      work: { amount: texts * written, unit: "tokens/s" },
      tolerance: 0,
      rows: [
        { ...row, name: "nlac", role: "ours", implementation: "written" },
        {
          ...{ ...row, name: "transformers", role: "peer", implementation: "transformers-written" },
          script: "generation.py",
        },
        {
          ...{ ...row, name: "reading weights, keys and values", role: "limit", implementation: "copy" },
          script: "limits.py",
        },
      ],
    };
  });
}

export async function prepareCuda({ parameters, device }: Job): Promise<Subject> {
  const { config, texts, prompt, written, cacheBytes } = parameters as Parameters;
  const learner = await Learner.create(config, { device, dtype: "bfloat16", cacheBytes });
  const { vocab_size: ids } = config as { vocab_size: number };
  const prompts = Array.from({ length: texts }, (_, i) =>
    Array.from(randomBits(1 + i, prompt), (bits) => bits % ids),
  );
  return {
    async call(number: number) {
      await learner.generate(
        prompts.map((tokens, i) => ({
          ...{ tokens, maxNewTokens: written, temperature: 1, seed: number * texts + i },
        })),
      );
    },
  };
}
