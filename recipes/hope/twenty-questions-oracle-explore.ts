/**
 * Figure 2, Oracle-Explore on 20 Questions: the final policy acts in the agent's place where HOPE
 * has proposals. Train hope/twenty-questions first, export it with `nlac export`, and name the
 * directory by --set config.proposer.local=….
 */
import { defineRecipe } from "nlac";
import { environments, learner, model, twentyQuestions } from "./_settings.ts";

export default defineRecipe({
  name: "hope-twenty-questions-oracle-explore",
  description: "the paper's Oracle-Explore on 20 Questions with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.twentyQuestions,
  algorithm: "hope",
  config: {
    ...twentyQuestions,
    hindsight: false,
    proposer: { local: "models/hope-twenty-questions", device: learner.device, dtype: learner.dtype },
  },
});
