/**
 * Trains on the episodes of ai-sdk-agent.ts that `nlac serve --record episodes.jsonl` recorded;
 * nothing is played.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "ai-sdk-agent",
  description: "NLAC on recorded episodes of an agent that uses a served model",
  model: "Qwen/Qwen2.5-0.5B-Instruct",
  environment: { name: "recorded" },
  config: {
    recorded: ["episodes.jsonl"],
    episodesPerIteration: 0,
    iterations: 1,
    updatesPerIteration: 8,
    batchSize: 8,
    maxPromptTokens: 4096,
    maxActionTokens: 96,
    maxCriticTokens: 128,
  },
});
