/** Table 1, SAC with Qwen2.5-7B-Instruct on MATH: 48.2 % of its 500 hard problems. */
import { defineRecipe } from "nlac";
import { environment } from "./_math.ts";
import { learner, sac } from "./_settings.ts";

export default defineRecipe({
  name: "qwen2.5-7b-math-sac",
  description: "the paper's ablation by SAC on MATH with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "sac",
  config: sac,
});
