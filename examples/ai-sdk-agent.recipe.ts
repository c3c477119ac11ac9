/** Learns from the episodes that `nlac serve --record episodes.jsonl` kept of ai-sdk-agent.ts; nothing is played. */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "ai-sdk-agent",
  description: "NLAC from the recorded episodes of an agent that plays behind an endpoint",
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
