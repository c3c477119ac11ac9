/** NLAC on room-desk.ts: nlac train examples/room-desk.recipe.ts */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "room-desk",
  description: "a custom environment: a small model learns to book meeting rooms",
  model: "SmolLM2-135M-Instruct",
  environment: { name: "./room-desk.ts" },
  // A model of this size does not follow the output formats: scripted episodes teach it.
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
});
