/**
 * A real language model: SmolLM2-135M-Instruct plays 20 Questions on the CPU, criticizes itself,
 * refines its actions and takes steps on both losses. It shows every part of the method; it is too
 * short to reach a result.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "smollm2",
  description:
    "NLAC on 20 Questions with SmolLM2-135M: every part of the method in a few minutes, on the CPU",
  model: "SmolLM2-135M-Instruct",
  learner: { device: "cpu" },
  environment: { name: "twentyQuestions", options: { turns: 6 } },
  // A model of this size does not follow the output formats: scripted games teach it.
  warmup: { steps: 32, batchSize: 8, learningRate: 3e-4, episodes: 48 },
  config: {
    iterations: 2,
    episodesPerIteration: 8,
    updatesPerIteration: 4,
    batchSize: 4,
    targetRate: 0.02,
    criticLearningRate: 1e-5,
    policyLearningRate: 1e-5,
    maxPromptTokens: 2048,
    maxActionTokens: 64,
    maxCriticTokens: 96,
  },
  run: { checkpointSeconds: 120 },
});
