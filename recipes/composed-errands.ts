/**
 * NLAC on a real language model, tested on tasks that it did not train on: SmolLM2-135M-Instruct on
 * errands whose orders follow from the parts of their names, 60 kinds for training and 30 held out.
 * The warm-up teaches the output formats on synthetic orders that are unrelated to the real ones. It
 * lasts until targets judge an action by the desk's reply: after 60 steps they repeat the reply and
 * call a refused action optimal all the same (docs/experiments.md).
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "composed-errands",
  description: "NLAC on errands with SmolLM2-135M, tested on held-out ones; for a GPU, or hours on a CPU",
  model: "SmolLM2-135M-Instruct",
  environment: { name: "errands", options: { composed: true, moves: 5 } },
  warmup: { steps: 180, batchSize: 8, learningRate: 3e-4, episodes: 120 },
  config: {
    iterations: 30,
    episodesPerIteration: 32,
    updatesPerIteration: 32,
    batchSize: 8,
    targetRate: 0.02,
    // With 3e-5 and 16 updates the critic had learned no order after five iterations.
    criticLearningRate: 1e-4,
    policyLearningRate: 3e-5,
    optimizerState: "separate",
    rehearsal: 4,
    maxPromptTokens: 1024,
    maxActionTokens: 48,
    maxCriticTokens: 48,
    evaluation: { every: 5, episodes: 60, temperature: 1, split: "test" },
  },
  run: { checkpointSeconds: 300 },
});
