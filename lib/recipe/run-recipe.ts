/** The recipe of a run directory. */

import { existsSync, readdirSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { NlacError } from "../base/errors.ts";
import { isRun, readDescription, withoutKeys } from "../run/description.ts";
import { parseRecipe, type Recipe } from "./recipe.ts";

/** The recipe that a run was started with. Throws ERR_RUN, also if it has none; ERR_CONFIG. */
export function recipeOf(run: string): Recipe {
  const recipe = recipeIfAny(run);
  if (recipe !== undefined) return recipe;
  throw new NlacError(
    "ERR_RUN",
    `${run} has no recipe: another program than nlac train trained it. Use that program.`,
  );
}

/** The recipe of a run; undefined if a program created the run without one. */
export function recipeIfAny(run: string): Recipe | undefined {
  const { recipe } = readDescription(run);
  return recipe === undefined ? undefined : parseRecipe(recipe, run);
}

/**
 * The recipe, or undefined if the path or name is not a run's, or the run has none. Throws ERR_RUN, also for a missing
 * directory below runs/; ERR_CONFIG.
 */
export function recipeIfRun(runOrModel: string): Recipe | undefined {
  refuseMissingRun(runOrModel);
  return isRun(runOrModel) ? recipeIfAny(runOrModel) : undefined;
}

/**
 * Throws ERR_RUN for a missing directory below runs/, which would otherwise be looked up as a model of the hub or a
 * file.
 */
export function refuseMissingRun(path: string): void {
  if (/^(\.\/)?runs\//.test(path) && !existsSync(path))
    throw new NlacError("ERR_RUN", `There is no run ${path}${among(dirname(path))}.`);
}

/** The newest runs of a directory, for a message. */
function among(directory: string): string {
  if (!existsSync(directory)) return `: there is no directory ${directory} here`;
  const runs = readdirSync(directory)
    .filter((name) => isRun(join(directory, name)))
    .map((name) => ({
      name,
      time: statSync(join(directory, name, "run.json"), { throwIfNoEntry: false })?.mtimeMs ?? 0,
    }))
    .sort((a, b) => b.time - a.time)
    .map(({ name }) => name);
  if (runs.length === 0) return `, and ${directory} has no others`;
  return `; ${directory} has ${runs.slice(0, 5).join(", ")}${runs.length > 5 ? ", …" : ""}`;
}

/** Where to look for the model of a run's adapter if it is not where the run loaded it. */
export function baseOf({ model }: Recipe): string | undefined {
  return typeof model === "string" ? model : undefined;
}

/**
 * The fields in which a recipe differs from the one that a run has recorded. What a run does not
 * record counts as equal, namely API keys, functions, and the dtype "auto", in whose place it has
 * the type that was used. So does the description.
 */
export function changedFields(recipe: Recipe, recorded: Recipe): string[] {
  const [given, was] = [recipe, recorded].map(({ learner, description: _, ...rest }) => {
    const dtype = recipe.learner.dtype === "auto" ? "auto" : learner.dtype;
    return JSON.parse(JSON.stringify({ ...rest, learner: { ...learner, dtype } }, withoutKeys));
  });
  return Object.keys({ ...given, ...was }).filter((key) => !isDeepStrictEqual(given[key], was[key]));
}
