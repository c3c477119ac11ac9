/**
 * Critique-GRPO on the errands of errands.ts: the same base model, in groups of four per errand.
 * Two episodes of each group are refined, and the better refinement joins the group. Refined
 * episodes count as environment steps, including the actions that are repeated before them.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-critique-grpo",
  description: "Critique-GRPO on eight errands with a model of half a million parameters, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "critique-grpo",
  config: {
    iterations: 18,
    episodesPerIteration: 16,
    groupSize: 4,
    refinedPerGroup: 2,
    epochs: 4,
    batchSize: 10,
    learningRate: 2e-4,
    betas: [0.9, 0.98],
    maxPromptTokens: 256,
    maxActionTokens: 8,
    maxCriticTokens: 16,
  },
});
