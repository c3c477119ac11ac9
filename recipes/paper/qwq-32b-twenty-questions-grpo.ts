/** Table 1, GRPO with QwQ-32B on 20 Questions: 25.6 % of its games. */
import { defineRecipe } from "nlac";
import { grpo, learner } from "./_settings.ts";
import { environment } from "./_twenty-questions.ts";

export default defineRecipe({
  name: "qwq-32b-twenty-questions-grpo",
  description: "the paper's GRPO on 20 Questions with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "grpo",
  config: grpo,
});
