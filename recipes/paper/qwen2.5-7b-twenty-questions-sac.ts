/** Table 1, SAC with Qwen2.5-7B-Instruct on 20 Questions: 9.8 % of its games. */
import { defineRecipe } from "nlac";
import { learner, sac } from "./_settings.ts";
import { environment } from "./_twenty-questions.ts";

export default defineRecipe({
  name: "qwen2.5-7b-twenty-questions-sac",
  description: "the paper's ablation by SAC on 20 Questions with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "sac",
  config: sac,
});
