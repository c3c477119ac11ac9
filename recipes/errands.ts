/**
 * NLAC in a world where the answer is known: eight kinds of errand with hidden orders, six moves each, 480 episodes in
 * all. Make the model it starts from first: `nlac train errands-base --run runs/errands-base`. What is reached, and at
 * which settings it was not, is in docs/experiments.md.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands",
  description: "half a million parameters learn eight errands by NLAC on the CPU, in minutes",
  model: "runs/errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  config: {
    iterations: 30,
    episodesPerIteration: 16,
    updatesPerIteration: 24,
    batchSize: 32,
    targetRate: 0.02,
    criticLearningRate: 2e-4,
    policyLearningRate: 2e-4,
    optimizerState: "separate",
    betas: [0.9, 0.98],
    rehearsal: 16,
    maxPromptTokens: 256,
    maxActionTokens: 8,
    maxCriticTokens: 16,
  },
});
