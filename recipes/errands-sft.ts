/** Supervised fine-tuning on the scripted episodes of errands, whose orders are made up. */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-sft",
  description:
    "supervised fine-tuning on scripted errands with a model of half a million parameters, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "sft",
  config: {
    demonstrationsPerTask: 8,
    epochs: 2,
    batchSize: 16,
    learningRate: 1e-4,
    maxTokens: 256,
    maxPromptTokens: 240,
    maxActionTokens: 8,
  },
});
