/**
 * Training steps on a GPU of models with the shapes of real ones and random weights, in bfloat16:
 * all parameters of a small and a middle-sized one, and low-rank adapters on a large one. nlac's
 * trained parameters are float32, the other libraries' have the model's type.
 */

import { Learner } from "../../learner/learner.ts";
import { modelConfigs } from "../model-configs.ts";
import type { Case, Job, Row, Subject } from "../suite.ts";
import { type TrainingParameters, trainingStep } from "../training-step.ts";

type Parameters = TrainingParameters & {
  /** Config for AutoModelForCausalLM.from_config and Learner.create. */
  config: Record<string, unknown>;
  /** Rank of the adapters of all matrices of the layers; 0: all parameters are trained. */
  rank: number;
};

export function cudaCases(): Case[] {
  return [
    { model: "SmolLM2-135M" as const, texts: 4, tokens: 512, rank: 0 },
    { model: "Qwen2.5-1.5B" as const, texts: 4, tokens: 2048, rank: 0 },
    { model: "Qwen2.5-7B" as const, texts: 4, tokens: 1024, rank: 16 },
  ].map(({ model, texts, tokens, rank }): Case => {
    const config = modelConfigs[model];
    const parameters: Parameters = { config, texts, tokens, rank, learningRate: 1e-6 };
    const ours: Row = { name: "nlac", role: "ours", implementation: "random", resultBytes: null };
    const peer = rank > 0 ? "peft, bfloat16" : "transformers, bfloat16";
    return {
      id: `${model.toLowerCase()}-${texts}x${tokens}`,
      title:
        `${model}'s shape · ${texts} texts of ${tokens} tokens, forward, backward and AdamW` +
        (rank > 0 ? ` of adapters of rank ${rank}` : ""),
      parameters,
      timing: { warmup: 2, calls: 5, seconds: 0 },
      work: { amount: texts * tokens, unit: "tokens/s" },
      // The libraries draw other weights; the loss is near that of equal probabilities.
      tolerance: 0.02,
      rows: [ours, { ...ours, name: peer, role: "peer", script: "training.py" }],
    };
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
