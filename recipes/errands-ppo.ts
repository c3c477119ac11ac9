/**
 * PPO on the errands of recipes/errands.ts: the same model to start from, with a value head that begins at random, and
 * the same 480 episodes. Make that model first: `nlac train errands-base --run runs/errands-base`.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-ppo",
  description: "half a million parameters learn eight errands by PPO on the CPU",
  model: "runs/errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "ppo",
  config: {
    iterations: 30,
    episodesPerIteration: 16,
    epochs: 4,
    batchSize: 8,
    klCoefficient: 0,
    learningRate: 2e-4,
    betas: [0.9, 0.98],
    maxPromptTokens: 256,
    maxActionTokens: 8,
  },
});
