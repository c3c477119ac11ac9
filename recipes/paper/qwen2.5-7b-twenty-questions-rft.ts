/** Table 1, RFT with Qwen2.5-7B-Instruct on 20 Questions: 12.6 % of its games. */
import { defineRecipe } from "nlac";
import { learner, rft } from "./_settings.ts";
import { environment } from "./_twenty-questions.ts";

export default defineRecipe({
  name: "qwen2.5-7b-twenty-questions-rft",
  description: "the paper's RFT on 20 Questions with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "rft",
  config: rft,
});
