/**
 * A real language model for the first time: SmolLM2-135M-Instruct plays 20 Questions on the CPU, criticises itself,
 * refines its actions and takes steps on both losses. Small enough to watch; not meant to reach a result.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "smollm2",
  description: "SmolLM2-135M plays 20 Questions on the CPU: every part of the method in a few minutes",
  model: "SmolLM2-135M-Instruct",
  learner: { device: "cpu" },
  environment: { name: "twentyQuestions", options: { turns: 6 } },
  // A model of this size answers in none of the forms unasked: a few minutes of scripted games shows it how.
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
