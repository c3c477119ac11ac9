/**
 * Rejection fine-tuning instead of NLAC in composed-errands.ts: the same model, errands and
 * warm-up. With `imitate=hindsight` it imitates the actions that the desk names.
 */
import { defineRecipe } from "nlac";
import composed from "./composed-errands.ts";

export default defineRecipe({
  name: "composed-errands-rft",
  description: "rejection fine-tuning of SmolLM2-135M on errands, tested on held-out ones",
  model: composed.model,
  environment: composed.environment,
  warmup: composed.warmup,
  algorithm: "rft",
  config: {
    iterations: 30,
    episodesPerIteration: 32,
    updatesPerIteration: 16,
    batchSize: 8,
    learningRate: 3e-5,
    maxPromptTokens: 1024,
    maxActionTokens: 48,
    evaluation: { every: 5, episodes: 60, temperature: 1, split: "test" },
  },
  run: composed.run,
});
