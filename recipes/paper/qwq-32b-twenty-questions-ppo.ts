/** Table 1, PPO with QwQ-32B on 20 Questions: 24.0 % of its games. */
import { defineRecipe } from "nlac";
import { learner, ppo } from "./_settings.ts";
import { environment } from "./_twenty-questions.ts";

export default defineRecipe({
  name: "qwq-32b-twenty-questions-ppo",
  description: "the paper's PPO on 20 Questions with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "ppo",
  config: ppo,
});
