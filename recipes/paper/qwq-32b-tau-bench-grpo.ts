/** Table 1, GRPO with QwQ-32B on tau-bench retail: a score of 0.48. */
import { defineRecipe } from "nlac";
import { grpo, learner } from "./_settings.ts";
import { environment } from "./_tau-bench.ts";

export default defineRecipe({
  name: "qwq-32b-tau-bench-grpo",
  description: "the paper's GRPO on tau-bench retail with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "grpo",
  config: grpo,
});
