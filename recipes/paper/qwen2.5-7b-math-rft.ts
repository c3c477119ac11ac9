/** Table 1, RFT with Qwen2.5-7B-Instruct on MATH: 52.5 % of its 500 hard problems. */
import { defineRecipe } from "nlac";
import { environment } from "./_math.ts";
import { learner, rft } from "./_settings.ts";

export default defineRecipe({
  name: "qwen2.5-7b-math-rft",
  description: "the paper's RFT on MATH with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "rft",
  config: rft,
});
