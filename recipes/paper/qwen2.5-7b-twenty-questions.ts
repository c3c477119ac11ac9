/** Table 1, NLAC with Qwen2.5-7B-Instruct on 20 Questions: 26.0 % of its games. */
import { defineRecipe } from "nlac";
import { learner, nlac } from "./_settings.ts";
import { environment } from "./_twenty-questions.ts";

export default defineRecipe({
  name: "qwen2.5-7b-twenty-questions",
  description: "the paper's NLAC on 20 Questions with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  config: nlac,
});
