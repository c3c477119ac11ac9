/** SAC on the errands of errands.ts: the same model to start from, with Q heads that begin as its policy. */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-sac",
  description: "half a million parameters learn eight errands by token-level SAC on the CPU",
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
