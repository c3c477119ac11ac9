/** Table 1, PPO with QwQ-32B on tau-bench retail: a score of 0.47. */
import { defineRecipe } from "nlac";
import { learner, ppo } from "./_settings.ts";
import { environment } from "./_tau-bench.ts";

export default defineRecipe({
  name: "qwq-32b-tau-bench-ppo",
  description: "the paper's PPO on tau-bench retail with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "ppo",
  config: ppo,
});
