/**
 * Rejection fine-tuning on the errands of errands.ts: the same base model and number of episodes.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-rft",
  description: "rejection fine-tuning on eight errands with a model of half a million parameters, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "rft",
  config: {
    iterations: 26,
    episodesPerIteration: 16,
    updatesPerIteration: 24,
    batchSize: 32,
    learningRate: 2e-4,
    betas: [0.9, 0.98],
    maxPromptTokens: 256,
    maxActionTokens: 8,
  },
});
