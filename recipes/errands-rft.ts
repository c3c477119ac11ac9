/** Rejection fine-tuning on the errands of errands.ts: the same model to start from, the same episodes. */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-rft",
  description: "half a million parameters imitate their own successes on eight errands, on the CPU",
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
