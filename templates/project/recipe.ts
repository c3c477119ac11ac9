/** The training: `npm run train`. Fields that are left out have defaults; your editor shows what they mean. */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "__NAME__",
  description: "NLAC on a desk with four hidden orders: about a minute on a CPU",
  // Ships with nlac. For a real model: "Qwen/Qwen2.5-0.5B-Instruct", a directory, or a .gguf file.
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "./desk.ts" },
  config: {
    iterations: 8,
    episodesPerIteration: 16,
    updatesPerIteration: 24,
    batchSize: 16,
    targetRate: 0.02,
    criticLearningRate: 3e-4,
    policyLearningRate: 3e-4,
    optimizerState: "separate",
    betas: [0.9, 0.98],
    // Only a model this small needs to be reminded of the output formats.
    rehearsal: 8,
    maxPromptTokens: 256,
    maxActionTokens: 8,
    maxCriticTokens: 16,
    evaluation: { every: 4, episodes: 32, temperature: 1 },
  },
});
