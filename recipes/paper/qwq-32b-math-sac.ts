/** Table 1, SAC with QwQ-32B on MATH: 64.7 % of its 500 hard problems. */
import { defineRecipe } from "nlac";
import { environment } from "./_math.ts";
import { learner, sac } from "./_settings.ts";

export default defineRecipe({
  name: "qwq-32b-math-sac",
  description: "the paper's ablation by SAC on MATH with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "sac",
  config: sac,
});
