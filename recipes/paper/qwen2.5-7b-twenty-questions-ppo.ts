/** Table 1, PPO with Qwen2.5-7B-Instruct on 20 Questions: 17.2 % of its games. */
import { defineRecipe } from "nlac";
import { learner, ppo } from "./_settings.ts";
import { environment } from "./_twenty-questions.ts";

export default defineRecipe({
  name: "qwen2.5-7b-twenty-questions-ppo",
  description: "the paper's PPO on 20 Questions with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "ppo",
  config: ppo,
});
