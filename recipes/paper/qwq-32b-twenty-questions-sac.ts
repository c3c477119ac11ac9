/** Table 1, SAC with QwQ-32B on 20 Questions: 13.2 % of its games. */
import { defineRecipe } from "nlac";
import { learner, sac } from "./_settings.ts";
import { environment } from "./_twenty-questions.ts";

export default defineRecipe({
  name: "qwq-32b-twenty-questions-sac",
  description: "the paper's ablation by SAC on 20 Questions with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "sac",
  config: sac,
});
