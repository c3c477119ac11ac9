/** Table 1, HOPE on 20 Questions: a success rate of 0.97 after two iterations. */
import { defineRecipe } from "nlac";
import { environments, learner, model, twentyQuestions } from "./_settings.ts";

export default defineRecipe({
  name: "hope-twenty-questions",
  description: "the paper's HOPE on 20 Questions with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.twentyQuestions,
  algorithm: "hope",
  config: twentyQuestions,
});
