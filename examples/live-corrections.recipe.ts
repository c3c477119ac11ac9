/** Trains a served model on people's corrections: nlac serve MODEL --train examples/live-corrections.recipe.ts */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "live-corrections",
  description: "SFT on the corrections that people post while they use the model",
  model: "Qwen/Qwen2.5-0.5B-Instruct",
  environment: { name: "recorded" },
  algorithm: "sft",
  run: { checkpointSeconds: 300 },
  config: { epochs: 3, batchSize: 4, learningRate: 1e-5, maxTokens: 4096 },
});
