/**
 * The first training run to try: NLAC on the errands of errands.ts, with the success rate measured
 * during training. At first one errand in a hundred succeeds.
 */
import { defineRecipe } from "nlac";
import errands from "./errands.ts";

export default defineRecipe({
  ...errands,
  name: "quickstart",
  description:
    "NLAC on eight errands with half a million parameters, measured during training, in minutes, on the CPU",
  config: { ...errands.config, evaluation: { every: 4, episodes: 64, temperature: 1 } },
});
