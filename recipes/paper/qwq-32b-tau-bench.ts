/** Table 1, NLAC with QwQ-32B on tau-bench retail: a score of 0.59. */
import { defineRecipe } from "nlac";
import { learner, nlacReasoning } from "./_settings.ts";
import { environment } from "./_tau-bench.ts";

export default defineRecipe({
  name: "qwq-32b-tau-bench",
  description: "the paper's NLAC on tau-bench retail with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  config: nlacReasoning,
});
