/** Table 1, PPO with Qwen2.5-7B-Instruct on tau-bench retail: a score of 0.28. */
import { defineRecipe } from "nlac";
import { learner, ppo } from "./_settings.ts";
import { environment } from "./_tau-bench.ts";

export default defineRecipe({
  name: "qwen2.5-7b-tau-bench-ppo",
  description: "the paper's PPO on tau-bench retail with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "ppo",
  config: ppo,
});
