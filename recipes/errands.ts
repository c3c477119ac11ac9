/**
 * NLAC in a world where the answer is known: eight kinds of errand with hidden orders, six moves each. The model it starts
 * from is shipped; errands-base.ts made it. What is reached, and at which settings it was not, is in docs/experiments.md.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands",
  description: "half a million parameters learn eight errands by NLAC on the CPU, in minutes",
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
