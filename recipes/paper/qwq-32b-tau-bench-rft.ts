/** Table 1, RFT with QwQ-32B on tau-bench retail: a score of 0.35. */
import { defineRecipe } from "nlac";
import { learner, rft } from "./_settings.ts";
import { environment } from "./_tau-bench.ts";

export default defineRecipe({
  name: "qwq-32b-tau-bench-rft",
  description: "the paper's RFT on tau-bench retail with QwQ-32B",
  model: "Qwen/QwQ-32B",
  learner,
  environment,
  algorithm: "rft",
  config: rft,
});
