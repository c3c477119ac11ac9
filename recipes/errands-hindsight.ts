/**
 * A rival with NLAC's information on the errands of errands.ts: imitation of the actions that the desk's answers name, read
 * by hand. The same model to start from, the same episodes.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-hindsight",
  description: "half a million parameters imitate what the desk told them, on eight errands, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "rft",
  config: {
    imitate: "hindsight",
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
