/** `nlac train`: runs a recipe. */

import { accessSync, constants, existsSync, rmSync } from "node:fs";
import { join, resolve } from "node:path";
import type { Command } from "commander";
import { trainGrpo } from "../algorithms/grpo.ts";
import { trainNlac } from "../algorithms/nlac.ts";
import { trainPpo } from "../algorithms/ppo.ts";
import { trainRft } from "../algorithms/rft.ts";
import { trainSac } from "../algorithms/sac.ts";
import { NlacError } from "../base/errors.ts";
import { version } from "../base/version.ts";
import { describeBuild } from "../bench/machine.ts";
import type { Environment } from "../contract/environment.ts";
import { formatFigure, formatSeconds, TerminalProgress } from "../display/progress.ts";
import { openEnvironment } from "../environments/registry.ts";
import { onDisk } from "../files/disk.ts";
import { readRecords } from "../files/records.ts";
import { Learner } from "../learner/learner.ts";
import type { LearnerOptions } from "../learner/options.ts";
import { resolveDtype } from "../learner/sources.ts";
import { loadRecipe, type Recipe } from "../recipe/recipe.ts";
import { requireWords } from "../roles/role-writer.ts";
import {
  learnerDirectory,
  lock,
  type MetricsRow,
  noteBuild,
  RunDirectory,
  requireNewRun,
} from "../run/directory.ts";
import type { TrainingResult, TrainingRun } from "../run/training-run.ts";
import { Tokenizer } from "../tokens/tokenizer.ts";
import {
  requireDemonstrations,
  requireForm,
  requireHindsight,
  requireTasks,
} from "../training/requirements.ts";
import { warmUp } from "../training/warmup.ts";
import { dryRun, renderDryRun } from "./dry-run.ts";
import { baseOf, recipeOf } from "./model.ts";
import { collect } from "./options.ts";
import { stoppable } from "./stop.ts";

interface TrainFlags {
  set: string[];
  run?: string;
  resume?: boolean;
  dryRun?: boolean;
  json?: boolean;
}

interface Algorithm {
  train(options: {
    model: Learner;
    environment: Environment;
    config: never; // the recipe's own, which its schema has checked
    run: TrainingRun;
  }): Promise<TrainingResult>;
  /** What the learner is to predict beside tokens. */
  heads?: "value" | "q";
}

const algorithms: Record<Recipe["algorithm"], Algorithm> = {
  nlac: { train: trainNlac },
  rft: { train: trainRft },
  grpo: { train: trainGrpo },
  ppo: { train: trainPpo, heads: "value" },
  sac: { train: trainSac, heads: "q" },
};

export function registerTrain(program: Command): void {
  program
    .command("train")
    .description("train a model by a recipe")
    .argument("[recipe]", "a recipe's name (quickstart) or file; not needed with --resume")
    .option("--set <field=value>", "change a field of the recipe; may be repeated", collect, [])
    .option("--run <directory>", "where the run is written (default: runs/<recipe>-<date>)")
    .option("--resume", "continue the run in --run from its newest checkpoint")
    .option("--dry-run", "print the resolved recipe, the memory and time it takes, and end")
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Examples:
  nlac train quickstart
  nlac train quickstart --set config.iterations=4 --run runs/longer
  nlac train --resume --run runs/longer

Ctrl-C rolls back to the last safe point, saves a checkpoint and exits; --resume
goes on from there, bit for bit. During the warm-up nothing has been saved yet,
and the run directory is removed again.`,
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
  const progress = new TerminalProgress();
  await stoppable(
    (line) => progress.note(line),
    "at the next safe point",
    (signal) => run(recipe, flags, progress, signal),
  ).finally(() => progress.end());
}

async function run(
  recipe: Recipe,
  flags: TrainFlags,
  progress: TerminalProgress,
  signal: AbortSignal,
): Promise<void> {
  const environment = await openEnvironment(recipe.environment.name, recipe.environment.options);
  try {
    await requireGiven(recipe, environment, flags);
    await trainIn(environment, recipe, flags, progress, signal);
  } finally {
    await environment.close();
  }
}

/** What is not there for the recipe is refused before a model is loaded, and warmed up, for nothing. Throws ERR_CONFIG, ERR_IO. */
async function requireGiven(
  { config, warmup }: Recipe,
  environment: Environment,
  { resume }: TrainFlags,
): Promise<void> {
  const shows = warmup.steps > 0 || ("rehearsal" in config && config.rehearsal > 0);
  requireForm(environment, config);
  if (shows) requireDemonstrations(environment);
  if (shows || config.episodesPerIteration > 0) await requireTasks(environment, "train");
  if (config.evaluation.every > 0) await requireTasks(environment, config.evaluation.split);
  if ("imitate" in config && config.imitate !== "successes") requireHindsight(environment);
  // A run that was begun has its own copy of them.
  for (const file of resume || !("recorded" in config) ? [] : config.recorded)
    onDisk(file, () => accessSync(file, constants.R_OK));
}

async function trainIn(
  environment: Environment,
  recipe: Recipe,
  flags: TrainFlags,
  progress: TerminalProgress,
  signal: AbortSignal,
): Promise<void> {
  const started = performance.now();
  const path = resolve(flags.run ?? `runs/${recipe.name}-${timestamp()}`);
  const { device } = recipe.learner;
  // A run that is resumed has recorded what "auto" was.
  const dtype = resolveDtype(recipe.learner);
  recipe.learner.dtype = dtype;
  // Before anything is read: a model may take minutes to load, and another process may write the next checkpoint.
  if (flags.resume) lock(path);
  else requireNewRun(path);
  const named = typeof recipe.model === "string" ? recipe.model : "a new model";
  progress.note(`${flags.resume ? "resuming" : "loading"} ${named} (${dtype}, ${device})`);
  const { train, heads } = algorithms[recipe.algorithm];
  const learnerOptions = { ...recipe.learner, seed: recipe.config.seed };
  const model = flags.resume
    ? await Learner.resume(learnerDirectory(path), { ...learnerOptions, base: baseOf(recipe) })
    : await openStart(recipe.model, { ...learnerOptions, ...(heads === undefined ? {} : { heads }) });
  let directory: RunDirectory | undefined;
  try {
    const build = describeBuild(device);
    const options = {
      signal,
      progress,
      description: { nlac: version, builds: [build], started: new Date().toISOString(), recipe },
      ...recipe.run,
    };
    directory = flags.resume ? RunDirectory.resume(path, model, options) : RunDirectory.create(path, options);
    if (flags.resume) noteBuild(path, build);
    progress.note(`run directory: ${path}`);
    if (recipe.algorithm === "nlac") requireWords(model, recipe.config);
    if (!flags.resume) await warm(recipe, model, environment, progress, signal);
    const result = await train({
      model,
      environment,
      config: recipe.config as never,
      run: directory,
    });
    progress.end();
    if (flags.json) {
      console.log(JSON.stringify({ run: path, ...result }));
      return;
    }
    const { episodes, environmentSteps, updates, stopped } = result;
    console.log(
      [
        `${stopped ? "Stopped" : "Done"} after ${formatSeconds((performance.now() - started) / 1000)}:`,
        `${episodes} episodes, ${environmentSteps} environment steps, ${updates} updates.`,
        ...successLine(path),
        "",
        stopped ? `Continue:  nlac train --resume --run ${path}` : `Read it:   nlac view ${path}`,
        ...(recipe.environment.name === "recorded"
          ? [`Serve it:  nlac serve ${path}`]
          : [`Try it:    nlac play ${path}`, `Measure:   nlac eval ${path}`]),
      ].join("\n"),
    );
  } finally {
    directory?.close();
    // Stopped or broken during the warm-up: there is nothing to resume, and a second try wants the directory.
    if (directory !== undefined && !existsSync(join(path, "latest"))) rmSync(path, { recursive: true });
    await model.dispose();
  }
}

/** What `config.evaluation` measured at first and at last, if it was asked to. */
function successLine(path: string): string[] {
  const measured: number[] = [];
  for (const { values } of readRecords<MetricsRow>(join(path, "metrics.jsonl")))
    if (typeof values["eval/success"] === "number") measured.push(values["eval/success"]);
  if (measured.length === 0) return [];
  return [`Success: ${formatFigure(measured[0]!)} at first, ${formatFigure(measured.at(-1)!)} at last.`];
}

/** The model that a training starts from. */
async function openStart(model: Recipe["model"], options: LearnerOptions): Promise<Learner> {
  if (typeof model !== "string") {
    return Learner.create(model.config, { ...options, tokenizer: new Tokenizer(model.tokenizer) });
  }
  return Learner.load(existsSync(join(model, "run.json")) ? learnerDirectory(model) : model, options);
}

/** The recipe's warm-up, if it asks for one. It is short: a stop gives it up, and nothing has been saved yet. */
async function warm(
  recipe: Recipe,
  model: Learner,
  environment: Environment,
  progress: TerminalProgress,
  signal: AbortSignal,
): Promise<void> {
  if (recipe.warmup.steps === 0) return;
  progress.phase("warm-up", recipe.warmup.steps);
  await warmUp({
    model,
    environment,
    config: recipe.warmup,
    seed: recipe.config.seed,
    signal,
    onStep: (step, nll, tokens) => {
      progress.show({ NLL: nll });
      progress.advance(step, tokens);
    },
  });
  progress.hide("NLL");
}

async function resolveRecipe(name: string | undefined, flags: TrainFlags): Promise<Recipe> {
  if (!flags.resume) {
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

/** 20261121-104500, local time. */
function timestamp(): string {
  const now = new Date(Date.now() - new Date().getTimezoneOffset() * 60_000);
  return now.toISOString().slice(0, 19).replaceAll(/[-:]/g, "").replace("T", "-");
}
