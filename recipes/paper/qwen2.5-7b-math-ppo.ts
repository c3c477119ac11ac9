/** Table 1, PPO with Qwen2.5-7B-Instruct on MATH: 52.3 % of its 500 hard problems. */
import { defineRecipe } from "nlac";
import { environment } from "./_math.ts";
import { learner, ppo } from "./_settings.ts";

export default defineRecipe({
  name: "qwen2.5-7b-math-ppo",
  description: "the paper's PPO on MATH with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "ppo",
  config: ppo,
});
