/** Runs a recipe: opens the environment and the model, warms up, trains, and writes the run directory. */

import { accessSync, constants, existsSync, rmSync } from "node:fs";
import { join, resolve } from "node:path";
import { trainGrpo } from "../algorithms/grpo.ts";
import { trainNlac } from "../algorithms/nlac.ts";
import { trainPpo } from "../algorithms/ppo.ts";
import { trainRft } from "../algorithms/rft.ts";
import { trainSac } from "../algorithms/sac.ts";
import { version } from "../base/version.ts";
import type { Environment } from "../contract/environment.ts";
import { type Progress, silentProgress } from "../display/progress.ts";
import { openEnvironment } from "../environments/registry.ts";
import { onDisk } from "../files/disk.ts";
import type { Lock } from "../files/lock.ts";
import { Learner } from "../learner/learner.ts";
import type { LearnerOptions } from "../learner/options.ts";
import { resolveDtype } from "../learner/sources.ts";
import { requireWords } from "../roles/role-writer.ts";
import { describeBuild, describeNumerics, numericsWarning } from "../run/build.ts";
import { chooseCheckpoint, hasCheckpoint, learnerDirectory } from "../run/checkpoints.ts";
import { note, readDescription, requireNewRun } from "../run/description.ts";
import { lockRun, RunDirectory } from "../run/directory.ts";
import type { TrainingResult, TrainingRun } from "../run/training-run.ts";
import { Tokenizer } from "../tokens/tokenizer.ts";
import {
  requireDemonstrations,
  requireForm,
  requireHindsight,
  requireTasks,
} from "../training/requirements.ts";
import { warmUp } from "../training/warmup.ts";
import { parseRecipe, type Recipe, type RecipeInput } from "./recipe.ts";
import { baseOf, recipeOf } from "./run-recipe.ts";

export interface TrainRecipeOptions {
  /** Where the run is written. Default: runs/<recipe>-<date>. */
  directory?: string | undefined;
  /**
   * Stops the run at the next safe point, with a checkpoint. During the warm-up nothing has been saved yet: the call
   * then rejects with ERR_ABORTED and the directory is removed.
   */
  signal?: AbortSignal | undefined;
  progress?: Progress | undefined;
  /** Called with what is being loaded, with the run directory, and with warnings. */
  log?: ((line: string) => void) | undefined;
}

export interface ResumeRunOptions extends Omit<TrainRecipeOptions, "directory"> {
  /** Number of the checkpoint to continue from. Default: the newest one that is whole. */
  checkpoint?: number | undefined;
}

export interface RecipeResult extends TrainingResult {
  /** The run directory. */
  run: string;
}

interface Algorithm {
  train(options: {
    model: Learner;
    environment: Environment;
    config: never; // the recipe's own, which its schema has checked
    run: TrainingRun;
  }): Promise<TrainingResult>;
  /** What the learner predicts besides tokens. */
  heads?: "value" | "q";
}

const algorithms: Record<Recipe["algorithm"], Algorithm> = {
  nlac: { train: trainNlac },
  rft: { train: trainRft },
  grpo: { train: trainGrpo },
  ppo: { train: trainPpo, heads: "value" },
  sac: { train: trainSac, heads: "q" },
};

/**
 * Trains as `nlac train` does. `loadRecipe` gives the recipes that come with nlac.
 *
 * @throws NlacError ERR_CONFIG for a bad recipe, ERR_RUN for a directory that already has a run, ERR_ABORTED; see
 *   `Learner.load` for errors of the model
 */
export async function trainRecipe(
  recipe: RecipeInput,
  options: TrainRecipeOptions = {},
): Promise<RecipeResult> {
  const parsed = parseRecipe(recipe, "trainRecipe");
  const path = resolve(options.directory ?? `runs/${parsed.name}-${timestamp()}`);
  return run(parsed, path, undefined, options);
}

/**
 * Continues a run with the recipe that it was started with. If its newest checkpoint is damaged, the newest one that is
 * whole is used, with a warning. Records after the checkpoint are removed and repeated; later checkpoints are renamed
 * to `….aside`. Without `log`, warnings are emitted by the process.
 *
 * @throws NlacError ERR_RUN, also if another process uses the run; ERR_CHECKPOINT that names the damaged files
 */
export async function resumeRun(directory: string, options: ResumeRunOptions = {}): Promise<RecipeResult> {
  const path = resolve(directory);
  const recipe = recipeOf(path);
  // First of all: a model may take minutes to load, and another process could write the next checkpoint meanwhile.
  const lock = lockRun(path);
  try {
    return await run(recipe, path, lock, options);
  } finally {
    lock.release();
  }
}

async function run(
  recipe: Recipe,
  path: string,
  lock: Lock | undefined,
  options: ResumeRunOptions,
): Promise<RecipeResult> {
  const environment = await openEnvironment(recipe.environment.name, recipe.environment.options);
  try {
    await requireGiven(recipe, environment, lock !== undefined);
    return { run: path, ...(await trainIn(environment, recipe, path, lock, options)) };
  } finally {
    await environment.close();
  }
}

/** Refuses missing inputs before a model is loaded and warmed up. Throws ERR_CONFIG, ERR_IO. */
async function requireGiven(
  { config, warmup }: Recipe,
  environment: Environment,
  resume: boolean,
): Promise<void> {
  const shows = warmup.steps > 0 || ("rehearsal" in config && config.rehearsal > 0);
  requireForm(environment, config);
  if (shows) requireDemonstrations(environment);
  if (shows || config.episodesPerIteration > 0) await requireTasks(environment, "train");
  if (config.evaluation.every > 0) await requireTasks(environment, config.evaluation.split);
  if ("imitate" in config && config.imitate !== "successes") requireHindsight(environment);
  // A run that was started has its own copy of the recorded episodes.
  for (const file of resume || !("recorded" in config) ? [] : config.recorded)
    onDisk(file, () => accessSync(file, constants.R_OK));
}

async function trainIn(
  environment: Environment,
  recipe: Recipe,
  path: string,
  lock: Lock | undefined,
  { signal = new AbortController().signal, progress = silentProgress, log, checkpoint }: ResumeRunOptions,
): Promise<TrainingResult> {
  const { device } = recipe.learner;
  // A run records what "auto" was; a resumed run finds that in its recipe.
  const dtype = resolveDtype(recipe.learner);
  recipe.learner.dtype = dtype;
  const warn = log ?? ((line: string) => process.emitWarning(line));
  const from = lock && (await chooseCheckpoint(path, { number: checkpoint, warn }));
  if (from === undefined) requireNewRun(path);
  const named = typeof recipe.model === "string" ? recipe.model : "a new model";
  log?.(`${from ? `checkpoint ${from.number}: resuming` : "loading"} ${named} (${dtype}, ${device})`);
  const { train, heads } = algorithms[recipe.algorithm];
  const learnerOptions = { ...recipe.learner, seed: recipe.config.seed };
  const model = from
    ? await Learner.resume(join(from.path, "learner"), {
        ...learnerOptions,
        base: baseOf(recipe),
        verify: false,
      })
    : await openStart(recipe.model, { ...learnerOptions, ...(heads === undefined ? {} : { heads }) });
  let directory: RunDirectory | undefined;
  try {
    const build = describeBuild(device);
    const numerics = describeNumerics(device, dtype);
    const runOptions = {
      signal,
      progress,
      description: {
        ...{ nlac: version, builds: [build], numerics: [numerics], started: new Date().toISOString() },
        recipe,
      },
      ...recipe.run,
      ...(lock && { lock }),
    };
    if (from) {
      const warning = numericsWarning(readDescription(path).numerics, numerics);
      if (warning !== undefined) warn(warning);
      note(path, "builds", build);
      note(path, "numerics", numerics);
    }
    directory = from
      ? await RunDirectory.resume(path, model, runOptions, from)
      : RunDirectory.create(path, runOptions);
    log?.(`run directory: ${path}`);
    if (recipe.algorithm === "nlac") requireWords(model, recipe.config);
    if (!from) await warm(recipe, model, environment, progress, signal);
    return await train({ model, environment, config: recipe.config as never, run: directory });
  } finally {
    directory?.close();
    // Stopped or failed during the warm-up: nothing can be resumed, and a second attempt needs the directory.
    if (!from && directory !== undefined && !hasCheckpoint(path)) rmSync(path, { recursive: true });
    await model.dispose();
  }
}

/** The model that a training starts from. */
async function openStart(model: Recipe["model"], options: LearnerOptions): Promise<Learner> {
  if (typeof model !== "string") {
    return Learner.create(model.config, { ...options, tokenizer: new Tokenizer(model.tokenizer) });
  }
  return Learner.load(existsSync(join(model, "run.json")) ? learnerDirectory(model) : model, options);
}

/** The recipe's warm-up, if it has one. It is short: a stop abandons it, and nothing has been saved yet. */
async function warm(
  recipe: Recipe,
  model: Learner,
  environment: Environment,
  progress: Progress,
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
  progress.hide?.("NLL");
}

/** 20261121-104500, local time. */
function timestamp(): string {
  const now = new Date(Date.now() - new Date().getTimezoneOffset() * 60_000);
  return now.toISOString().slice(0, 19).replaceAll(/[-:]/g, "").replace("T", "-");
}
