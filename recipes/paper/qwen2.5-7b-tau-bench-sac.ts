/** Table 1, SAC with Qwen2.5-7B-Instruct on tau-bench retail: a score of 0.18. */
import { defineRecipe } from "nlac";
import { learner, sac } from "./_settings.ts";
import { environment } from "./_tau-bench.ts";

export default defineRecipe({
  name: "qwen2.5-7b-tau-bench-sac",
  description: "the paper's ablation by SAC on tau-bench retail with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "sac",
  config: sac,
});
