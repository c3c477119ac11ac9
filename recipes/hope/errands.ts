/**
 * HOPE in the world of errands, whose orders are hidden: the environment's code, which knows them,
 * proposes what should have been brought. A model of half a million parameters cannot write
 * proposals itself.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "hope-errands",
  description: "HOPE on eight errands with a model of half a million parameters, in minutes, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "hope",
  config: {
    iterations: 4,
    episodesPerTask: 8,
    branchRange: { shares: [0, 1] },
    proposer: "environment",
    points: 1024,
    rewardEpochs: 2,
    rewardBatchSize: 32,
    rewardLearningRate: 3e-4,
    candidateTemperature: 1,
    batchSize: 16,
    learningRate: 1e-4,
    betas: [0.9, 0.98],
    maxTokens: 256,
    maxPromptTokens: 240,
    maxActionTokens: 8,
  },
});
