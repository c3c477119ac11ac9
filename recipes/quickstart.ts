/**
 * The first minutes: NLAC on the errands of errands.ts, where learning can be watched. At first one errand in a hundred
 * is done; the policy is measured as training goes on.
 */
import { defineRecipe } from "nlac";
import errands from "./errands.ts";

export default defineRecipe({
  ...errands,
  name: "quickstart",
  description:
    "half a million parameters learn eight errands by NLAC before your eyes, in minutes, on the CPU",
  config: { ...errands.config, evaluation: { every: 4, episodes: 64, temperature: 1 } },
});
