/**
 * Rejection fine-tuning on the errands of recipes/errands.ts: the same model to start from, the same 480 episodes. Make
 * that model first: `nlac train errands-base --run runs/errands-base`.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-rft",
  description: "half a million parameters imitate their own successes on eight errands, on the CPU",
  model: "runs/errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "rft",
  config: {
    iterations: 30,
    episodesPerIteration: 16,
    updatesPerIteration: 24,
    batchSize: 32,
    learningRate: 2e-4,
    betas: [0.9, 0.98],
    maxPromptTokens: 256,
    maxActionTokens: 8,
  },
});
