/**
 * Training steps on a GPU of models with the shapes of real ones and random weights, in bfloat16:
 * all parameters of a small and a middle-sized one, and low-rank adapters on a large one. nlac's
 * trained parameters are float32, the other libraries' have the model's type.
 */

import { Learner } from "../../learner/learner.ts";
import type { Case, Job, Row, Subject } from "../suite.ts";
import { type TrainingParameters, trainingStep } from "../training-step.ts";

type Parameters = TrainingParameters & {
  /** Config for AutoModelForCausalLM.from_config and Learner.create. */
  config: Record<string, unknown>;
  /** Rank of the adapters of all matrices of the layers; 0: all parameters are trained. */
  rank: number;
};

const qwen = {
  architectures: ["Qwen2ForCausalLM"],
  model_type: "qwen2",
  hidden_act: "silu",
  max_position_embeddings: 32768,
  rms_norm_eps: 1e-6,
  rope_theta: 1e6,
  use_sliding_window: false,
};
const configs = {
  "SmolLM2-135M": {
    architectures: ["LlamaForCausalLM"],
    model_type: "llama",
    hidden_act: "silu",
    hidden_size: 576,
    intermediate_size: 1536,
    num_hidden_layers: 30,
    num_attention_heads: 9,
    num_key_value_heads: 3,
    vocab_size: 49152,
    max_position_embeddings: 8192,
    rms_norm_eps: 1e-5,
    rope_theta: 1e5,
    tie_word_embeddings: true,
  },
  "Qwen2.5-1.5B": {
    ...qwen,
    hidden_size: 1536,
    intermediate_size: 8960,
    num_hidden_layers: 28,
    num_attention_heads: 12,
    num_key_value_heads: 2,
    vocab_size: 151936,
    tie_word_embeddings: true,
  },
  "Qwen2.5-7B": {
    ...qwen,
    hidden_size: 3584,
    intermediate_size: 18944,
    num_hidden_layers: 28,
    num_attention_heads: 28,
    num_key_value_heads: 4,
    vocab_size: 152064,
    tie_word_embeddings: false,
  },
};

export function cudaCases(): Case[] {
  return [
    { model: "SmolLM2-135M" as const, texts: 4, tokens: 512, rank: 0 },
    { model: "Qwen2.5-1.5B" as const, texts: 4, tokens: 2048, rank: 0 },
    { model: "Qwen2.5-7B" as const, texts: 4, tokens: 1024, rank: 16 },
  ].map(({ model, texts, tokens, rank }) => {
    const config = configs[model];
    const parameters: Parameters = { config, texts, tokens, rank, learningRate: 1e-6 };
    const row = (row: Partial<Row>) => ({ name: "nlac", role: "ours" as const, resultBytes: null, ...row });
    return {
      id: `${model.toLowerCase()}-${texts}x${tokens}`,
      title:
        `${model}'s shape · ${texts} texts of ${tokens} tokens, forward, backward and AdamW` +
        (rank > 0 ? ` of adapters of rank ${rank}` : ""),
      parameters,
      timing: { warmup: 2, calls: 5, seconds: 0 },
      work: { amount: texts * tokens, unit: "tokens/s" as const },
      // The libraries draw other weights; the loss is near that of equal probabilities.
      tolerance: 0.02,
      rows: [
        row({ implementation: "random" }),
        row({
          name: rank > 0 ? "peft, bfloat16" : "transformers, bfloat16",
          ...{ role: "peer", implementation: "random", script: "training.py" },
        }),
      ],
    } as Case;
  });
}

export async function prepareCuda({ parameters, device }: Job): Promise<Subject> {
  const { config, rank, ...given } = parameters as Parameters;
  const learner = await Learner.create(config, {
    ...{ device, dtype: "bfloat16" },
    ...(rank > 0 && { adapter: { rank, alpha: rank } }),
  });
  return trainingStep(learner, given);
}
