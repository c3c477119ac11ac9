/** Table 1, PRM+RL on 20 Questions (0.82): HOPE without hindsight, α = 0. */
import { defineRecipe } from "nlac";
import { environments, learner, model, twentyQuestions } from "./_settings.ts";

export default defineRecipe({
  name: "hope-twenty-questions-prm",
  description: "the paper's PRM+RL on 20 Questions with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.twentyQuestions,
  algorithm: "hope",
  config: { ...twentyQuestions, branchedEpisodes: 0, branchShare: 0 },
});
