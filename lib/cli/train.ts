/** `nlac train`: trains a model with a recipe. */

import { join, resolve } from "node:path";
import type { Command } from "commander";
import { NlacError } from "../base/errors.ts";
import { formatFigure, formatSeconds, TerminalProgress } from "../display/progress.ts";
import { readRecords } from "../files/records.ts";
import { loadRecipe, type Recipe } from "../recipe/recipe.ts";
import { recipeOf } from "../recipe/run-recipe.ts";
import { type RecipeResult, resumeRun, trainRecipe } from "../recipe/train-recipe.ts";
import type { MetricsRow } from "../run/directory.ts";
import { dryRun, renderDryRun } from "./dry-run.ts";
import { collect, wholeNumber } from "./options.ts";
import { stoppable } from "./stop.ts";

interface TrainFlags {
  set: string[];
  run?: string;
  resume?: boolean;
  checkpoint?: number;
  dryRun?: boolean;
  json?: boolean;
}

export function registerTrain(program: Command): void {
  program
    .command("train")
    .description("train a model with a recipe")
    .argument("[recipe]", "a recipe's name (quickstart) or file; not needed with --resume")
    .option("--set <field=value>", "change a field of the recipe; may be repeated", collect, [])
    .option("--run <directory>", "run directory (default: runs/<recipe>-<date>)")
    .option("--resume", "continue the run in --run from its newest whole checkpoint")
    .option("--checkpoint <number>", "with --resume: continue from this checkpoint", wholeNumber(0))
    .option("--dry-run", "print the resolved recipe and its memory and time, and exit")
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Examples:
  nlac train quickstart
  nlac train quickstart --set config.iterations=4 --run runs/longer
  nlac train --resume --run runs/longer
  nlac train --resume --run runs/longer --checkpoint 3

Ctrl-C rolls back to the last safe point, saves a checkpoint and exits; --resume
continues from there, bit for bit with the same number of threads. It compares
checksums first. If the newest checkpoint is damaged, it says so and takes the
newest one that is whole; later ones are renamed to N.aside. A run that is
stopped during the warm-up has no checkpoint, and its directory is removed.`,
    )
    .action(train);
}

async function train(name: string | undefined, flags: TrainFlags): Promise<void> {
  const recipe = await resolveRecipe(name, flags);
  if (flags.dryRun) {
    const dry = await dryRun(recipe);
    console.log(flags.json ? JSON.stringify(dry, null, 2) : renderDryRun(dry));
    return;
  }
  const started = performance.now();
  const progress = new TerminalProgress();
  const log = (line: string) => progress.note(line);
  const result = await stoppable(log, "at the next safe point", (signal) =>
    flags.resume
      ? resumeRun(flags.run!, { signal, progress, log, checkpoint: flags.checkpoint })
      : trainRecipe(recipe, { directory: flags.run, signal, progress, log }),
  ).finally(() => progress.end());
  if (flags.json) console.log(JSON.stringify(result));
  else console.log(summary(recipe, result, (performance.now() - started) / 1000));
}

function summary(recipe: Recipe, result: RecipeResult, seconds: number): string {
  const { run, episodes, environmentSteps, updates, stopped } = result;
  return [
    `${stopped ? "Stopped" : "Done"} after ${formatSeconds(seconds)}:`,
    `${episodes} episodes, ${environmentSteps} environment steps, ${updates} updates.`,
    ...successLine(run),
    "",
    stopped ? `Continue:  nlac train --resume --run ${run}` : `Inspect:   nlac view ${run}`,
    ...(recipe.environment.name === "recorded"
      ? [`Serve:     nlac serve ${run}`]
      : [`Play:      nlac play ${run}`, `Evaluate:  nlac eval ${run}`]),
  ].join("\n");
}

/** First and last result of `config.evaluation`, if there is any. */
function successLine(path: string): string[] {
  const measured: number[] = [];
  for (const { values } of readRecords<MetricsRow>(join(path, "metrics.jsonl")))
    if (typeof values["eval/success"] === "number") measured.push(values["eval/success"]);
  if (measured.length === 0) return [];
  return [`Success: ${formatFigure(measured[0]!)} at first, ${formatFigure(measured.at(-1)!)} at last.`];
}

async function resolveRecipe(name: string | undefined, flags: TrainFlags): Promise<Recipe> {
  if (!flags.resume) {
    if (flags.checkpoint !== undefined) throw new NlacError("ERR_CONFIG", "--checkpoint needs --resume.");
    if (name === undefined)
      throw new NlacError("ERR_CONFIG", "Name a recipe, for example: nlac train quickstart");
    return loadRecipe(name, flags.set);
  }
  if (flags.run === undefined) throw new NlacError("ERR_CONFIG", "--resume needs --run <directory>.");
  if (name !== undefined || flags.set.length > 0) {
    throw new NlacError(
      "ERR_CONFIG",
      "A run is resumed with the recipe it was started with: leave out the recipe and --set.",
    );
  }
  return recipeOf(resolve(flags.run));
}
