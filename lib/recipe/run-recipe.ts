/** The recipe of a run directory. */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { readDescription } from "../run/description.ts";
import { parseRecipe, type Recipe } from "./recipe.ts";

/** The recipe that a run was started with. Throws ERR_RUN, ERR_CONFIG. */
export function recipeOf(run: string): Recipe {
  return parseRecipe(readDescription(run).recipe, run);
}

/** The recipe, or undefined if the path or name is not a run's. Throws ERR_RUN, ERR_CONFIG. */
export function recipeIfRun(runOrModel: string): Recipe | undefined {
  return existsSync(join(runOrModel, "run.json")) ? recipeOf(runOrModel) : undefined;
}

/** Where to look for the model of a run's adapter if it is not where the run loaded it. */
export function baseOf({ model }: Recipe): string | undefined {
  return typeof model === "string" ? model : undefined;
}
