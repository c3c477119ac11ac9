/** Table 1, GRPO with Qwen2.5-7B-Instruct on 20 Questions: 18.4 % of its games. */
import { defineRecipe } from "nlac";
import { grpo, learner } from "./_settings.ts";
import { environment } from "./_twenty-questions.ts";

export default defineRecipe({
  name: "qwen2.5-7b-twenty-questions-grpo",
  description: "the paper's GRPO on 20 Questions with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "grpo",
  config: grpo,
});
