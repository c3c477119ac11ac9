/** Table 1, RFT with QwQ-32B on MATH: 72.5 % of its 500 hard problems. */
import { defineRecipe } from "nlac";
import { environment } from "./_math.ts";
import { learner, rft } from "./_settings.ts";

export default defineRecipe({
  name: "qwq-32b-math-rft",
  description: "the paper's RFT on MATH with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "rft",
  config: rft,
});
