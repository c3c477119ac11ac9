/** The warm start of HOPE on Car Dealer; see hope/twenty-questions-sft. */
import { defineRecipe } from "nlac";
import { carDealerSft, environments, learner, model } from "./_settings.ts";

export default defineRecipe({
  name: "hope-car-dealer-sft",
  description: "the warm start of HOPE on Car Dealer with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.carDealer,
  algorithm: "sft",
  config: carDealerSft,
});
