/** Table 1, HOPE on Guess My City: a success rate of 0.77 after two iterations. */
import { defineRecipe } from "nlac";
import { environments, guessMyCity, learner, model } from "./_settings.ts";

export default defineRecipe({
  name: "hope-guess-my-city",
  description: "the paper's HOPE on Guess My City with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.guessMyCity,
  algorithm: "hope",
  config: guessMyCity,
});
