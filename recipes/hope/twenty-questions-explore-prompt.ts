/**
 * Figure 2, Explore-Prompt on 20 Questions: the policy is asked for an action that differs from
 * five samples.
 */
import { defineRecipe } from "nlac";
import { environments, learner, model, twentyQuestions } from "./_settings.ts";

export default defineRecipe({
  name: "hope-twenty-questions-explore-prompt",
  description: "the paper's Explore-Prompt on 20 Questions with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.twentyQuestions,
  algorithm: "hope",
  config: { ...twentyQuestions, proposer: "different" },
});
