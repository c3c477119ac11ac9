/**
 * An hour of 20 Questions on a laptop's CPU: SmolLM2-135M-Instruct after a warm-up on scripted
 * games. The paper uses Qwen2.5-7B-Instruct and a batch of 1024. docs/experiments.md says what a
 * model of this size can and cannot do.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "twenty-questions",
  description: "NLAC on 20 Questions with SmolLM2-135M for about an hour, on the CPU",
  model: "SmolLM2-135M-Instruct",
  learner: { device: "cpu" },
  environment: { name: "twentyQuestions" },
  warmup: { steps: 90, batchSize: 8, learningRate: 3e-4, episodes: 128 },
  config: {
    iterations: 30,
    episodesPerIteration: 8,
    updatesPerIteration: 8,
    batchSize: 8,
    targetRate: 0.02,
    criticLearningRate: 2e-5,
    policyLearningRate: 1e-5,
    optimizerState: "separate",
    maxPromptTokens: 4096,
    maxActionTokens: 64,
    maxCriticTokens: 96,
  },
  run: { checkpointSeconds: 900, keepCheckpoints: 1 },
});
