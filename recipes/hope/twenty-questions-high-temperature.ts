/** Figure 2, H-Temp on 20 Questions: PRM+RL with 30 episodes per task at temperature 1. */
import { defineRecipe } from "nlac";
import { environments, learner, model, twentyQuestions } from "./_settings.ts";

export default defineRecipe({
  name: "hope-twenty-questions-high-temperature",
  description: "the paper's H-Temp on 20 Questions with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.twentyQuestions,
  algorithm: "hope",
  config: { ...twentyQuestions, branchedEpisodes: 0, branchShare: 0, episodesPerTask: 30 },
});
