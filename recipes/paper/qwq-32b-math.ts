/** Table 1, NLAC with QwQ-32B on MATH: 72.7 % of its 500 hard problems. */
import { defineRecipe } from "nlac";
import { environment } from "./_math.ts";
import { learner, nlacReasoning } from "./_settings.ts";

export default defineRecipe({
  name: "qwq-32b-math",
  description: "the paper's NLAC on MATH with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  config: nlacReasoning,
});
