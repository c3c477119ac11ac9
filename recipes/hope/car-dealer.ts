/** Table 1, HOPE on Car Dealer: a success rate of 0.77 after two iterations. */
import { defineRecipe } from "nlac";
import { carDealer, environments, learner, model } from "./_settings.ts";

export default defineRecipe({
  name: "hope-car-dealer",
  description: "the paper's HOPE on Car Dealer with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.carDealer,
  algorithm: "hope",
  config: carDealer,
});
