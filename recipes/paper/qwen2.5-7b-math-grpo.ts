/** Table 1, GRPO with Qwen2.5-7B-Instruct on MATH: 49.8 % of its 500 hard problems. */
import { defineRecipe } from "nlac";
import { environment } from "./_math.ts";
import { grpo, learner } from "./_settings.ts";

export default defineRecipe({
  name: "qwen2.5-7b-math-grpo",
  description: "the paper's GRPO on MATH with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "grpo",
  config: grpo,
});
