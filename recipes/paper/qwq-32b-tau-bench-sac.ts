/** Table 1, SAC with QwQ-32B on tau-bench retail: a score of 0.31. */
import { defineRecipe } from "nlac";
import { learner, sac } from "./_settings.ts";
import { environment } from "./_tau-bench.ts";

export default defineRecipe({
  name: "qwq-32b-tau-bench-sac",
  description: "the paper's ablation by SAC on tau-bench retail with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "sac",
  config: sac,
});
