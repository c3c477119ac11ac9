/** SAC on the errands of errands.ts: the same base model, with Q heads that start as its policy. */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-sac",
  description: "token-level SAC on eight errands with a model of half a million parameters, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "sac",
  config: {
    iterations: 26,
    episodesPerIteration: 16,
    updatesPerIteration: 24,
    batchSize: 16,
    targetRate: 0.02,
    temperature: 0.02,
    learningRate: 3e-4,
    betas: [0.9, 0.98],
    maxPromptTokens: 256,
    maxActionTokens: 8,
  },
});
