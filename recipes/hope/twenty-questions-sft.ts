/**
 * The warm start of HOPE on 20 Questions. The paper imitates three games of GPT-4o per training word:
 * record them with `nlac eval service:gpt-4o --environment twentyQuestions --options …` (those of
 * _settings.ts) `--split train --trials 3 --episodes 330 --record games.jsonl`, and add
 * --set 'config.recorded=["games.jsonl"]' --set config.demonstrationsPerTask=0. Without them, the
 * environment's scripted player shows three games.
 */
import { defineRecipe } from "nlac";
import { environments, learner, model, twentyQuestionsSft } from "./_settings.ts";

export default defineRecipe({
  name: "hope-twenty-questions-sft",
  description: "the warm start of HOPE on 20 Questions with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.twentyQuestions,
  algorithm: "sft",
  config: twentyQuestionsSft,
});
