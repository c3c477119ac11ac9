/**
 * ArCHer on the errands of errands.ts: the same base model, a value head of zeros, and the same
 * number of episodes. The critic trains its head only: its steps on the layers that it shares with
 * the policy destroyed the policy, even at 3e-5 (docs/experiments.md).
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-archer",
  description: "ArCHer on eight errands with a model of half a million parameters, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "archer",
  config: {
    iterations: 26,
    episodesPerIteration: 16,
    criticUpdatesPerIteration: 24,
    policyUpdatesPerIteration: 4,
    criticIterations: 2,
    batchSize: 32,
    sharedCritic: false,
    criticLearningRate: 3e-3,
    policyLearningRate: 3e-5,
    betas: [0.9, 0.98],
    maxPromptTokens: 256,
    maxActionTokens: 8,
  },
});
