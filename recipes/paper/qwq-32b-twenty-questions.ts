/** Table 1, NLAC with QwQ-32B on 20 Questions: 32.1 % of its games. */
import { defineRecipe } from "nlac";
import { learner, nlacReasoning } from "./_settings.ts";
import { environment } from "./_twenty-questions.ts";

export default defineRecipe({
  name: "qwq-32b-twenty-questions",
  description: "the paper's NLAC on 20 Questions with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  config: nlacReasoning,
});
