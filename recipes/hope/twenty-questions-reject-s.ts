/**
 * Table 1, Reject-S on 20 Questions (0.63): imitates all successful episodes so far, from the
 * initial model in each iteration. Two iterations of 14 episodes for each of 110 words; 256 steps
 * of 64 actions are about one epoch of an iteration's successes.
 */
import { defineRecipe } from "nlac";
import { environments, learner, model } from "./_settings.ts";

export default defineRecipe({
  name: "hope-twenty-questions-reject-s",
  description: "the paper's Reject-S on 20 Questions with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.twentyQuestions,
  algorithm: "rft",
  config: {
    ...{ iterations: 2, episodesPerIteration: 14 * 110, restart: true },
    ...{ updatesPerIteration: 256, batchSize: 64, learningRate: 3e-5, schedule: { shape: "cosine" } },
    ...{ maxPromptTokens: 1920, maxActionTokens: 128 },
  },
});
