/** Trains a served model on its agents' episodes: nlac serve MODEL --train examples/live-agent.recipe.ts */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "live-agent",
  description: "NLAC on the episodes of agents that use the model while it is trained",
  model: "Qwen/Qwen2.5-0.5B-Instruct",
  environment: { name: "recorded" },
  run: { checkpointSeconds: 300 },
  config: {
    episodesPerIteration: 8,
    updatesPerIteration: 8,
    batchSize: 4,
    maxPromptTokens: 4096,
    maxActionTokens: 256,
    maxCriticTokens: 128,
  },
});
