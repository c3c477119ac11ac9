/** GRPO instead of NLAC in smollm2.ts: the same model, game and warm-up. */
import { defineRecipe } from "nlac";
import smollm2 from "./smollm2.ts";

export default defineRecipe({
  name: "smollm2-grpo",
  description: "GRPO on 20 Questions with SmolLM2-135M, four games per word, on the CPU",
  model: smollm2.model,
  learner: smollm2.learner,
  environment: smollm2.environment,
  warmup: smollm2.warmup,
  algorithm: "grpo",
  config: {
    iterations: 2,
    episodesPerIteration: 8,
    groupSize: 4,
    epochs: 1,
    batchSize: 4,
    learningRate: 1e-5,
    maxPromptTokens: 2048,
    maxActionTokens: 64,
  },
  run: smollm2.run,
});
