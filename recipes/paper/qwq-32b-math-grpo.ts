/** Table 1, GRPO with QwQ-32B on MATH: 70.8 % of its 500 hard problems. */
import { defineRecipe } from "nlac";
import { environment } from "./_math.ts";
import { grpo, learner } from "./_settings.ts";

export default defineRecipe({
  name: "qwq-32b-math-grpo",
  description: "the paper's GRPO on MATH with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "grpo",
  config: grpo,
});
