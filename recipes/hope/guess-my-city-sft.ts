/** The warm start of HOPE on Guess My City; see hope/twenty-questions-sft. */
import { defineRecipe } from "nlac";
import { environments, guessMyCitySft, learner, model } from "./_settings.ts";

export default defineRecipe({
  name: "hope-guess-my-city-sft",
  description: "the warm start of HOPE on Guess My City with Llama-3.2-3B-Instruct",
  model,
  learner,
  environment: environments.guessMyCity,
  algorithm: "sft",
  config: guessMyCitySft,
});
