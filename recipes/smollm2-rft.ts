/** Rejection fine-tuning instead of NLAC in smollm2.ts: the same model, game and warm-up. */
import { defineRecipe } from "nlac";
import smollm2 from "./smollm2.ts";

export default defineRecipe({
  name: "smollm2-rft",
  description: "rejection fine-tuning on 20 Questions with SmolLM2-135M, on the CPU",
  model: smollm2.model,
  learner: smollm2.learner,
  environment: smollm2.environment,
  warmup: smollm2.warmup,
  algorithm: "rft",
  config: {
    iterations: 2,
    episodesPerIteration: 8,
    updatesPerIteration: 4,
    batchSize: 4,
    learningRate: 1e-5,
    maxPromptTokens: 2048,
    maxActionTokens: 64,
  },
  run: smollm2.run,
});
