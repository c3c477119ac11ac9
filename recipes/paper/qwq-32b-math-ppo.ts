/** Table 1, PPO with QwQ-32B on MATH: 71.4 % of its 500 hard problems. */
import { defineRecipe } from "nlac";
import { environment } from "./_math.ts";
import { learner, ppo } from "./_settings.ts";

export default defineRecipe({
  name: "qwq-32b-math-ppo",
  description: "the paper's PPO on MATH with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "ppo",
  config: ppo,
});
