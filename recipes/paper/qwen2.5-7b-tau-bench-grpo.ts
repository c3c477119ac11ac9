/** Table 1, GRPO with Qwen2.5-7B-Instruct on tau-bench retail: a score of 0.24. */
import { defineRecipe } from "nlac";
import { grpo, learner } from "./_settings.ts";
import { environment } from "./_tau-bench.ts";

export default defineRecipe({
  name: "qwen2.5-7b-tau-bench-grpo",
  description: "the paper's GRPO on tau-bench retail with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "grpo",
  config: grpo,
});
