/**
 * Table 1, LEAP on 20 Questions (0.45): imitates the proposals, from the initial model in each
 * iteration.
 */
import { defineRecipe } from "nlac";
import { environments, learner, model, twentyQuestions } from "./_settings.ts";

export default defineRecipe({
  name: "hope-twenty-questions-leap",
  description: "the paper's LEAP on 20 Questions with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.twentyQuestions,
  algorithm: "hope",
  config: {
    ...twentyQuestions,
    ...{ actor: "imitate", restart: true, learningRate: 3e-5, batchSize: 64, keepBest: false },
  },
});
