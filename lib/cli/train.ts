/** `nlac train`: trains a model with a recipe. */

import { hostname } from "node:os";
import { resolve } from "node:path";
import type { Command } from "commander";
import { isServed } from "../agents/versions.ts";
import { counted } from "../base/counted.ts";
import { fromFileSystem, fromNative, NlacError } from "../base/errors.ts";
import { formatFigure, formatSeconds, TerminalProgress } from "../display/progress.ts";
import { joinRanks, type Ranks } from "../ranks/join.ts";
import { type RankPlace, rankPlace } from "../ranks/place.ts";
import { serveRank } from "../ranks/serve-rank.ts";
import { loadRecipe, type Recipe } from "../recipe/recipe.ts";
import { recipeOf } from "../recipe/run-recipe.ts";
import { type RecipeResult, resumeRun, trainOrResume, trainRecipe } from "../recipe/train-recipe.ts";
import { readMetrics } from "../run/metrics.ts";
import { readStatus } from "../run/status.ts";
import { dryRun, renderDryRun } from "./dry-run.ts";
import { asTyped, say } from "./messages.ts";
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
    .option(
      "--set <field=value>",
      "change a field of the recipe (the value is JSON or text); may be repeated",
      collect,
      [],
    )
    .option("--run <directory>", "run directory (default: runs/<recipe>-<date>)")
    .option("--resume", "continue the run in --run from its newest undamaged checkpoint")
    .option("--checkpoint <number>", "with --resume: continue from this checkpoint", wholeNumber(0))
    .option("--dry-run", "print the resolved recipe with estimates of memory and time, and exit")
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
checksums first. If the newest checkpoint is damaged, it says so and uses the
newest undamaged one; later ones are renamed to N.aside.

On several GPUs or machines, a launcher starts this command once per rank and
sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. With --run, a
restart then continues the run (docs/scaling.md):
  torchrun --nproc-per-node 8 --no-python -- npx nlac train RECIPE --run DIR

A file named stop in the run directory stops the training as Ctrl-C does.`,
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
  const place = rankPlace();
  if (place === undefined) return trainHere(recipe, flags);
  await orExit(place, async () => {
    if (place.rank === 0) return trainHere(recipe, flags, await joinRanks(place, recipe.learner.device));
    const { address, port, timeoutMs } = place;
    const store = `${address}:${port}`;
    const late = setTimeout(() => {
      sayOnRank(place, `waiting for rank 0 at ${store}, for up to ${timeoutMs / 1000} s …`);
    }, noticeMs);
    const ranks = await joinRanks(place, recipe.learner.device).finally(() => clearTimeout(late));
    sayOnRank(place, `joined rank 0 at ${store}, which shows the progress`);
    // Rank 0 decides when to stop; a launcher signals every rank.
    await stoppable(ignored, "with rank 0", () => serveRank(ranks));
    sayOnRank(place, "ended with rank 0");
  });
}

const ignored = () => {};
/** Milliseconds after which a rank says that it waits for rank 0. */
const noticeMs = 5000;

function sayOnRank({ rank, ranks }: RankPlace, line: string): void {
  say(`[rank ${rank} of ${ranks} on ${hostname()}] ${line}`);
}

/** A failure ends the process at once: a call on the learner may still wait for other ranks. */
async function orExit(place: RankPlace, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (thrown) {
    const { code, message } = fromNative(fromFileSystem(thrown));
    say(`nlac: ${code}: [rank ${place.rank} on ${hostname()}] ${message}`);
    process.exit(1);
  }
}

async function trainHere(recipe: Recipe, flags: TrainFlags, ranks?: Ranks): Promise<void> {
  const started = performance.now();
  const progress = new TerminalProgress();
  const log = (line: string) => progress.note(line);
  const result = await stoppable(log, "at the next safe point", (signal) => {
    const options = { signal, progress, log, ranks };
    if (flags.resume) return resumeRun(flags.run!, { ...options, checkpoint: flags.checkpoint });
    // A launcher restarts a job with the same command.
    if (ranks && flags.run !== undefined) return trainOrResume(recipe, { ...options, directory: flags.run });
    return trainRecipe(recipe, { ...options, directory: flags.run });
  }).finally(() => progress.end());
  if (flags.json) console.log(JSON.stringify(result));
  else console.log(summary(recipe, result, (performance.now() - started) / 1000, ranks !== undefined));
}

function summary(recipe: Recipe, result: RecipeResult, seconds: number, onRanks: boolean): string {
  const { episodes, environmentSteps, updates, stopped } = result;
  const run = asTyped(result.run);
  const status = readStatus(result.run);
  const isIdle = !stopped && status?.phase === ""; // no phase of a training has begun
  const inWarmUp = stopped && status?.phase === "warm-up";
  const warm = recipe.warmup.steps > 0 ? " --set warmup.steps=0" : "";
  return [
    isIdle
      ? "Nothing was left to train: the run had finished."
      : `${stopped ? "Stopped" : "Done"} after ${formatSeconds(seconds)}:`,
    inWarmUp
      ? `${status.done} of ${counted(status.total, "warm-up step")}.`
      : `${counted(episodes, "episode")}, ${counted(environmentSteps, "environment step")}, ${counted(updates, "update")}.`,
    ...successLine(result.run),
    "",
    ...(isIdle
      ? [`Train on:  npx nlac train RECIPE --set model=${run}${warm}   (a new run from these weights)`]
      : []),
    stopped
      ? `Continue:  npx nlac train --resume --run ${run}${onRanks ? "   (on every rank, or on one)" : ""}`
      : `Inspect:   npx nlac dash ${run}`,
    ...(recipe.environment.name === "recorded"
      ? [`Serve:     npx nlac serve ${run}`]
      : [`Play:      npx nlac play ${run}`, `Evaluate:  npx nlac eval ${run}`]),
  ].join("\n");
}

/** First and last result of `config.evaluation`, if there is any. */
function successLine(path: string): string[] {
  const measured: number[] = [];
  try {
    for (const { values } of readMetrics(path))
      if (typeof values["eval/success"] === "number") measured.push(values["eval/success"]);
  } catch (error) {
    return [`Success is unknown: ${(error as Error).message}`]; // the training did not need the file
  }
  if (measured.length === 0) return [];
  if (measured.length === 1) return [`Success: ${formatFigure(measured[0]!)}, measured once.`];
  return [`Success: ${formatFigure(measured[0]!)} at first, ${formatFigure(measured.at(-1)!)} at last.`];
}

async function resolveRecipe(name: string | undefined, flags: TrainFlags): Promise<Recipe> {
  if (!flags.resume) {
    if (flags.checkpoint !== undefined) throw new NlacError("ERR_CONFIG", "--checkpoint needs --resume.");
    if (name === undefined)
      throw new NlacError("ERR_CONFIG", "Name a recipe, for example: npx nlac train quickstart");
    return loadRecipe(name, flags.set);
  }
  if (flags.run === undefined) throw new NlacError("ERR_CONFIG", "--resume needs --run <directory>.");
  if (name !== undefined || flags.set.length > 0) {
    throw new NlacError(
      "ERR_CONFIG",
      "A run is resumed with the recipe it was started with: leave out the recipe and --set. For a " +
        "new run from its weights: npx nlac train RECIPE --set model=RUN",
    );
  }
  const run = resolve(flags.run);
  const recipe = recipeOf(run);
  if (isServed(run))
    throw new NlacError(
      "ERR_RUN",
      `${run} was trained by nlac serve --train: continue it with the command that started it. For a new run from its ` +
        "weights: npx nlac train RECIPE --set model=RUN",
    );
  return recipe;
}
