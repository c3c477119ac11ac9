/** Table 1, RFT with QwQ-32B on 20 Questions: 22.0 % of its games. */
import { defineRecipe } from "nlac";
import { learner, rft } from "./_settings.ts";
import { environment } from "./_twenty-questions.ts";

export default defineRecipe({
  name: "qwq-32b-twenty-questions-rft",
  description: "the paper's RFT on 20 Questions with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "rft",
  config: rft,
});
