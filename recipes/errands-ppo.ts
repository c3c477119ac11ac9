/**
 * PPO on the errands of errands.ts: the same base model, a value head of zeros, and the same number
 * of episodes. One step per iteration: with eight, errors of the value head made it forget what it
 * had learned as soon as all 16 episodes of an iteration succeeded (docs/experiments.md).
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-ppo",
  description: "PPO on eight errands with a model of half a million parameters, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "ppo",
  config: {
    iterations: 26,
    episodesPerIteration: 16,
    epochs: 1,
    batchSize: 16,
    klCoefficient: 0,
    learningRate: 2e-4,
    betas: [0.9, 0.98],
    maxPromptTokens: 256,
    maxActionTokens: 8,
  },
});
