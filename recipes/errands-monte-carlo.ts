/**
 * Monte-Carlo language values on the errands of errands.ts: targets read what really followed in
 * the episode instead of a bootstrapped future. Everything else is as there.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-monte-carlo",
  description:
    "NLAC with Monte-Carlo language values on eight errands, with half a million parameters, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  config: {
    bootstrap: "monte-carlo",
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
