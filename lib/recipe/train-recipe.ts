/**
 * Runs a recipe: opens the environment and the model, warms up, trains, and writes the run
 * directory.
 */

import { accessSync, constants, existsSync, renameSync, rmSync } from "node:fs";
import { join, resolve } from "node:path";
import { trainArcher } from "../algorithms/archer.ts";
import { trainCritiqueGrpo } from "../algorithms/critique-grpo.ts";
import { trainDpo } from "../algorithms/dpo.ts";
import { trainGrpo } from "../algorithms/grpo.ts";
import { trainHope } from "../algorithms/hope.ts";
import { trainNlac } from "../algorithms/nlac.ts";
import { trainPpo } from "../algorithms/ppo.ts";
import { trainRft } from "../algorithms/rft.ts";
import { trainSac } from "../algorithms/sac.ts";
import { requireData, trainSft } from "../algorithms/sft.ts";
import { NlacError } from "../base/errors.ts";
import { version } from "../base/version.ts";
import { closeEnvironment } from "../contract/checks.ts";
import type { Environment } from "../contract/environment.ts";
import { type Progress, silentProgress } from "../display/progress.ts";
import { openEnvironment } from "../environments/registry.ts";
import { onDisk } from "../files/disk.ts";
import type { Lock } from "../files/lock.ts";
import type { Learner } from "../learner/learner.ts";
import { resolveDtype } from "../learner/sources.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { DistributedLearner } from "../ranks/distributed-learner.ts";
import type { Ranks } from "../ranks/join.ts";
import { openLearner } from "../ranks/open-learner.ts";
import { deviceOfRank } from "../ranks/place.ts";
import type { LearnerSource } from "../ranks/protocol.ts";
import { requireWords } from "../roles/role-writer.ts";
import { openRollouts, type Rollouts } from "../rollouts/open-rollouts.ts";
import { describeBuild, describeNumerics, numericsWarning } from "../run/build.ts";
import {
  chooseCheckpoint,
  hasCheckpoint,
  learnerDirectory,
  rewardModelName,
  type WholeCheckpoint,
} from "../run/checkpoints.ts";
import { note, readDescription, requireNewRun } from "../run/description.ts";
import { lockRun, RunDirectory } from "../run/directory.ts";
import { StopFile } from "../run/stop-file.ts";
import { newCounters, type TrainingResult, type TrainingRun, trainingResult } from "../run/training-run.ts";
import { openSinks, Reporting } from "../sinks/reporting.ts";
import type { Sink } from "../sinks/sink.ts";
import { requireProposer } from "../training/hope-config.ts";
import {
  requireDemonstrations,
  requireForm,
  requireFuture,
  requireHindsight,
  requireTasks,
} from "../training/requirements.ts";
import { parseRecipe, type Recipe, type RecipeInput } from "./recipe.ts";
import { baseOf, changedFields, recipeOf } from "./run-recipe.ts";
import { warmUpRun } from "./warm-up-run.ts";

/** Options of `trainRecipe`. */
export interface TrainRecipeOptions {
  /** Where the run is written. Default: runs/<recipe>-<date>. */
  directory?: string | undefined;
  /** Stops the run at the next safe point, with a checkpoint. */
  signal?: AbortSignal | undefined;
  progress?: Progress | undefined;
  /** Called with what is being loaded, with the run directory, and with warnings. */
  log?: ((line: string) => void) | undefined;
  /** Sinks of metrics and episodes in addition to the recipe's `report`. */
  sinks?: readonly Sink[] | undefined;
  /**
   * The ranks that train together, of which this is rank 0; the others call `serveRank`. After
   * ERR_PEER end the process: a call on this rank's learner may still wait for a rank that has
   * ended. Default: none.
   */
  ranks?: Ranks | undefined;
}

/** Options of `resumeRun`. */
export interface ResumeRunOptions extends Omit<TrainRecipeOptions, "directory"> {
  /** Number of the checkpoint to continue from. Default: the newest undamaged one. */
  checkpoint?: number | undefined;
}

/** Result of training a recipe. */
export interface RecipeResult extends TrainingResult {
  /** The run directory. */
  run: string;
}

/** A recipe's model and run directory, to be warmed up and trained. */
export interface OpenedRun<Model> {
  model: Model;
  rewardModel: Learner | undefined;
  run: RunDirectory;
  from: WholeCheckpoint | undefined;
}

/** A learner, or that of several ranks. */
export type TrainedModel = Learner | DistributedLearner;

interface Algorithm {
  train(options: {
    model: Learner;
    /** For methods with a reward model. */
    rewardModel?: Learner;
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
  "critique-grpo": { train: trainCritiqueGrpo },
  archer: { train: trainArcher, heads: "value" },
  sft: { train: trainSft },
  dpo: { train: trainDpo },
  hope: { train: trainHope },
};

/**
 * Trains as `nlac train` does. `loadRecipe` gives the recipes that come with nlac.
 *
 * @throws NlacError ERR_CONFIG for a bad recipe, ERR_RUN for a directory that already has a run,
 *   ERR_ABORTED; see `Learner.load` for errors of the model
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
 * Continues a run with the recipe that it was started with. If its newest checkpoint is damaged,
 * the newest undamaged one is used, with a warning. Records after the checkpoint are removed
 * and repeated; later checkpoints are renamed to `….aside`. Without `log`, warnings are emitted by
 * the process.
 *
 * @throws NlacError ERR_RUN, also if another process uses the run; ERR_CHECKPOINT that names the
 *   damaged files
 */
export async function resumeRun(directory: string, options: ResumeRunOptions = {}): Promise<RecipeResult> {
  const path = resolve(directory);
  return continueRun(path, recipeOf(path), options);
}

async function continueRun(path: string, recipe: Recipe, options: ResumeRunOptions): Promise<RecipeResult> {
  // Lock first: loading a model may take minutes, in which another process could write the next
  // checkpoint.
  const lock = lockRun(path);
  try {
    return await run(recipe, path, lock, options);
  } finally {
    lock.release();
  }
}

/**
 * Continues the run in `options.directory` if it has a checkpoint, and starts it otherwise: for
 * jobs that are restarted with the command that started them. A run that ended before its first
 * checkpoint is renamed to `….aside-N` and started anew.
 *
 * @throws NlacError ERR_RUN if the run was started with another recipe; see `trainRecipe` and
 *   `resumeRun`
 */
export async function trainOrResume(
  recipe: RecipeInput,
  options: TrainRecipeOptions & { directory: string },
): Promise<RecipeResult> {
  const parsed = parseRecipe(recipe, "trainOrResume");
  const path = resolve(options.directory);
  if (!existsSync(join(path, "run.json"))) return trainRecipe(recipe, options);
  const started = requireSameRecipe(parsed, path);
  if (hasCheckpoint(path)) return continueRun(path, started, options);
  setAside(path, options.log);
  return trainRecipe(recipe, options);
}

/**
 * Renames the directory of a run that ended before its first checkpoint, so that it can be started
 * anew. Throws ERR_RUN if a process is still starting it; ERR_IO.
 */
export function setAside(path: string, log?: (line: string) => void): void {
  lockRun(path).release();
  let aside = 1;
  while (existsSync(`${path}.aside-${aside}`)) aside++;
  onDisk(path, () => renameSync(path, `${path}.aside-${aside}`));
  log?.(`${path} has no checkpoint yet: renamed to ${path}.aside-${aside}`);
}

/**
 * The recipe that the run in `path` was started with, with the API keys and functions of the given
 * one, which a run does not record. Throws ERR_RUN unless the two are otherwise the same.
 */
export function requireSameRecipe(recipe: Recipe, path: string): Recipe {
  const started = recipeOf(path);
  const changed = changedFields(recipe, started);
  if (changed.length === 0) return { ...recipe, learner: started.learner };
  throw new NlacError(
    "ERR_RUN",
    `The run in ${path} was started with another recipe (${changed.join(", ")} differ). Continue it with the command ` +
      "that started it, or name another directory.",
  );
}

async function run(
  recipe: Recipe,
  path: string,
  lock: Lock | undefined,
  options: ResumeRunOptions,
): Promise<RecipeResult> {
  const { name, options: settings, stepTimeout } = recipe.environment;
  const environment = await openEnvironment(name, settings, stepTimeout);
  let stop: StopFile | undefined;
  try {
    if (recipe.algorithm === "sft") requireData(recipe.config);
    await requireGiven(recipe, environment, lock !== undefined);
    // Remove a stop file that the previous process did not see.
    if (lock) onDisk(path, () => rmSync(join(path, "stop"), { force: true }));
    stop = new StopFile(path, options.signal, () =>
      options.log?.(`${join(path, "stop")} was found: stopping at the next safe point …`),
    );
    const { signal } = stop;
    return { run: path, ...(await trainIn(environment, recipe, path, lock, { ...options, signal })) };
  } finally {
    stop?.close();
    await closeEnvironment(environment, options.log);
  }
}

/** Refuses missing inputs before a model is loaded and warmed up. Throws ERR_CONFIG, ERR_IO. */
export async function requireGiven(
  { config, warmup }: Recipe,
  environment: Environment,
  resume: boolean,
): Promise<void> {
  const shows =
    warmup.steps > 0 ||
    ("demonstrationsPerTask" in config && config.demonstrationsPerTask > 0) ||
    ("rehearsal" in config && config.rehearsal > 0);
  requireForm(environment, config);
  if ("futures" in config) requireFuture(environment, config);
  if (shows) requireDemonstrations(environment);
  const plays =
    "episodesPerTask" in config || ("episodesPerIteration" in config && config.episodesPerIteration > 0);
  if (shows || plays) await requireTasks(environment, "train");
  if (config.evaluation.every > 0) await requireTasks(environment, config.evaluation.split);
  if ("rewardEvaluation" in config && config.actor === "preference" && config.rewardEvaluation.episodes > 0)
    await requireTasks(environment, config.rewardEvaluation.split);
  if ("proposer" in config) requireProposer(environment, config);
  if ("imitate" in config && config.imitate !== "successes") requireHindsight(environment);
  // A run that was started has its own copy of the recorded episodes.
  for (const file of resume || !("recorded" in config) ? [] : config.recorded)
    onDisk(file, () => accessSync(resolve(file), constants.R_OK));
}

async function trainIn(
  environment: Environment,
  recipe: Recipe,
  path: string,
  lock: Lock | undefined,
  options: ResumeRunOptions,
): Promise<TrainingResult> {
  const opened = await openSinks(recipe.report);
  const openedRun = await openRun(recipe, path, lock, options);
  const { model, rewardModel, run } = openedRun;
  const { id, recipe: recorded } = readDescription(path) as { id: string; recipe: Record<string, unknown> };
  const sinks = [...opened, ...(options.sinks ?? [])];
  const reporting = new Reporting(sinks, { id, name: recipe.name, directory: path, recipe: recorded });
  const log = options.log ?? ((line: string) => process.emitWarning(line));
  let rollouts: Rollouts<TrainedModel> | undefined;
  const train = async () => {
    rollouts = recipe.rollouts && (await openRollouts(model, recipe.rollouts, { log }));
    const reported = reporting.of(run);
    return trainModel(
      ...[recipe, rollouts?.model ?? model, environment, rollouts?.of(reported) ?? reported, rewardModel],
    );
  };
  try {
    const isWarm = await warmUpRun({ ...openedRun, recipe, environment });
    const result = isWarm ? await train() : trainingResult(newCounters(), true);
    run.close(result.stopped ? "stopped" : "finished");
    reporting.ended(result);
    return result;
  } catch (error) {
    run.close(...endOf(error));
    reporting.failed(error);
    throw error;
  } finally {
    await rollouts?.close();
    await reporting.close(log);
    if (lock === undefined) removeUnsaved(path);
    await model.dispose();
    await rewardModel?.dispose();
  }
}

/** Removes a run that failed before its first checkpoint: it could not be resumed. */
export function removeUnsaved(path: string): void {
  if (!hasCheckpoint(path)) rmSync(path, { recursive: true });
}

/** Runs the recipe's algorithm. */
export function trainModel(
  { algorithm, config }: Recipe,
  model: LanguageModel,
  environment: Environment,
  run: TrainingRun,
  rewardModel?: Learner,
): Promise<TrainingResult> {
  const { train } = algorithms[algorithm];
  // A model with heads or a reference is a `Learner`; the recipe decided which it needs.
  return train({
    ...{ model: model as Learner, environment, config: config as never, run },
    ...(rewardModel && { rewardModel }),
  });
}

/**
 * Opens the model and the run directory of a recipe.
 *
 * @param lock the lock of a run that is resumed; undefined for a new run
 * @throws NlacError as `trainRecipe` and `resumeRun`
 */
export function openRun(
  recipe: Recipe,
  path: string,
  lock: Lock | undefined,
  options: Omit<ResumeRunOptions, "ranks">,
): Promise<OpenedRun<Learner>>;
export function openRun(
  recipe: Recipe,
  path: string,
  lock: Lock | undefined,
  options: ResumeRunOptions,
): Promise<OpenedRun<TrainedModel>>;
export async function openRun(
  recipe: Recipe,
  path: string,
  lock: Lock | undefined,
  {
    signal = new AbortController().signal,
    progress = silentProgress,
    log,
    checkpoint,
    ranks,
  }: ResumeRunOptions,
): Promise<OpenedRun<TrainedModel>> {
  const device = ranks ? deviceOfRank(recipe.learner.device, ranks.place) : recipe.learner.device;
  if (ranks && needsRewardModel(recipe))
    throw new NlacError(
      "ERR_CONFIG",
      "A recipe with a separate reward model, such as HOPE's, can be trained on one rank only.",
    );
  // A run records what "auto" was; a resumed run finds that in its recipe.
  const dtype = resolveDtype(recipe.learner);
  recipe.learner.dtype = dtype;
  const warn = log ?? ((line: string) => process.emitWarning(line));
  const from = lock && (await chooseCheckpoint(path, { number: checkpoint, warn }));
  if (from === undefined) requireNewRun(path);
  const named = typeof recipe.model === "string" ? recipe.model : "a new model";
  const on = ranks ? `${ranks.place.ranks} ranks, sharding ${recipe.learner.sharding}, ` : "";
  log?.(`${from ? `checkpoint ${from.number}: resuming` : "loading"} ${named} (${on}${dtype}, ${device})`);
  const { heads } = algorithms[recipe.algorithm];
  const source = sourceOf(recipe, heads, from && join(from.path, "learner"));
  const model = ranks ? await DistributedLearner.open(source, ranks, { log }) : await openLearner(source);
  let directory: RunDirectory | undefined;
  let rewardModel: Learner | undefined;
  try {
    if (needsRewardModel(recipe)) {
      rewardModel = await openLearner(sourceOf(recipe, "value", from && join(from.path, rewardModelName)));
    }
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
    return { model, rewardModel, run: directory, from };
  } catch (error) {
    directory?.close(...endOf(error));
    if (!from && directory !== undefined) removeUnsaved(path);
    await model.dispose();
    await rewardModel?.dispose();
    throw error;
  }
}

/** Whether a reward model is trained beside the policy, from the same start. */
function needsRewardModel(recipe: Recipe): boolean {
  return recipe.algorithm === "hope" && recipe.config.actor === "preference";
}

/** The learner of a training: that of a checkpoint, if given, or the one it starts from. */
function sourceOf(recipe: Recipe, heads: "value" | "q" | undefined, checkpoint?: string): LearnerSource {
  const common = { ...recipe.learner, seed: recipe.config.seed };
  if (checkpoint !== undefined) {
    const options = { ...common, base: baseOf(recipe), verify: false };
    return { kind: "resume", directory: checkpoint, options };
  }
  const options = { ...common, ...(heads === undefined ? {} : { heads }) };
  const { model } = recipe;
  if (typeof model !== "string")
    return { kind: "create", config: model.config, tokenizer: model.tokenizer, options };
  return {
    kind: "load",
    model: existsSync(join(model, "run.json")) ? learnerDirectory(model) : model,
    options,
  };
}

/** The final status of a run that `error` ended. */
export function endOf(error: unknown): Parameters<RunDirectory["close"]> {
  if (error instanceof NlacError && error.code === "ERR_ABORTED") return ["stopped"];
  const code = error instanceof NlacError ? error.code : "ERROR";
  return ["failed", { code, message: error instanceof Error ? error.message : String(error) }];
}

/** 20261121-104500, local time. */
function timestamp(): string {
  const now = new Date(Date.now() - new Date().getTimezoneOffset() * 60_000);
  return now.toISOString().slice(0, 19).replaceAll(/[-:]/g, "").replace("T", "-");
}
