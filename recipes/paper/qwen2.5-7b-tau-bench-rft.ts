/** Table 1, RFT with Qwen2.5-7B-Instruct on tau-bench retail: a score of 0.21. */
import { defineRecipe } from "nlac";
import { learner, rft } from "./_settings.ts";
import { environment } from "./_tau-bench.ts";

export default defineRecipe({
  name: "qwen2.5-7b-tau-bench-rft",
  description: "the paper's RFT on tau-bench retail with Qwen2.5-7B-Instruct",
  model: "Qwen/Qwen2.5-7B-Instruct",
  learner,
  environment,
  algorithm: "rft",
  config: rft,
});
