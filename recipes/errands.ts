/**
 * NLAC in a world with known success rates: eight kinds of errand with hidden orders, six moves
 * each. It starts from a model that ships with nlac, made by errands-base.ts. docs/experiments.md
 * has the results, also of settings that failed.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands",
  description: "NLAC on eight errands with a model of half a million parameters, in minutes, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  config: {
    iterations: 16,
    episodesPerIteration: 16,
    updatesPerIteration: 48,
    batchSize: 16,
    targetRate: 0.02,
    criticLearningRate: 3e-4,
    policyLearningRate: 3e-4,
    schedule: { shape: "linear", floor: 0.1 },
    optimizerState: "separate",
    betas: [0.9, 0.98],
    rehearsal: 8,
    maxPromptTokens: 256,
    maxActionTokens: 8,
    maxCriticTokens: 16,
  },
});
