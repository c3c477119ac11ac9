/**
 * GRPO on the errands of recipes/errands.ts: the same model to start from, the same 480 episodes, four on an errand. Make
 * that model first: `nlac train errands-base --run runs/errands-base`.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-grpo",
  description: "half a million parameters learn eight errands by GRPO on the CPU",
  model: "runs/errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "grpo",
  config: {
    iterations: 30,
    episodesPerIteration: 16,
    groupSize: 4,
    epochs: 4,
    batchSize: 8,
    klCoefficient: 0,
    learningRate: 2e-4,
    betas: [0.9, 0.98],
    maxPromptTokens: 256,
    maxActionTokens: 8,
  },
});
