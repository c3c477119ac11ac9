/** Table 1, NLAC with Qwen2.5-7B-Instruct on MATH: 60.2 % of its 500 hard problems. */
import { defineRecipe } from "nlac";
import { environment } from "./_math.ts";
import { learner, nlac } from "./_settings.ts";

export default defineRecipe({
  name: "qwen2.5-7b-math",
  description: "the paper's NLAC on MATH with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  config: nlac,
});
