/**
 * HOPE in the world of errands, whose orders are hidden: the environment's code, which knows them,
 * proposes what should have been brought. A model of half a million parameters cannot write
 * proposals itself. An errand takes three things, so that π_0 succeeds in two thirds of the
 * episodes, as the paper's does in 20 Questions.
 *
 * It helped in three of five worlds and changed nothing in two (docs/algorithms/hope.md). Where it
 * differs from the paper's recipes, and why:
 * - 64 episodes per task, 32 of them branched, because there are 8 tasks where the paper has 110:
 *   about 4,000 data points. From 350 the reward model learns which states are good, not which
 *   actions.
 * - The data are not balanced: that would discard a third of them, and label branches as worse than
 *   they are.
 * - A learning rate of the reward model 200 times the paper's, which is for 3 billion parameters,
 *   and three epochs. At 3e-3 the policy became worse.
 * - Pairs of the best and the worst of four actions, if their rewards differ by 0.05 or more:
 *   smaller differences are noise of the reward model, and DPO follows every pair alike.
 * - 640 states per iteration, 40 steps of the actor.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "hope-errands",
  description: "HOPE on eight errands with a model of half a million parameters, in minutes, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands", options: { chain: 3 } },
  algorithm: "hope",
  config: {
    iterations: 1,
    episodesPerTask: 64,
    branchedEpisodes: 32,
    branchRange: { shares: [0, 1] },
    proposer: "environment",
    balanced: false,
    points: 8000,
    rewardEpochs: 3,
    rewardBatchSize: 32,
    rewardLearningRate: 1e-3,
    actorStates: 640,
    candidates: 4,
    minGap: 0.05,
    candidateTemperature: 1,
    batchSize: 16,
    learningRate: 1e-4,
    betas: [0.9, 0.98],
    maxTokens: 256,
    maxPromptTokens: 240,
    maxActionTokens: 8,
  },
});
