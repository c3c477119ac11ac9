/** Table 1, NLAC with Qwen2.5-7B-Instruct on tau-bench retail: a score of 0.42. */
import { defineRecipe } from "nlac";
import { learner, nlac } from "./_settings.ts";
import { environment } from "./_tau-bench.ts";

export default defineRecipe({
  name: "qwen2.5-7b-tau-bench",
  description: "the paper's NLAC on tau-bench retail with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  config: nlac,
});
