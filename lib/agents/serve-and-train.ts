/**
 * One learner serves an agent and is trained on its rewarded episodes. The run directory also has
 *
 *   episodes.jsonl       the rewarded episodes, as nlac serve --record writes them
 *   open.jsonl           episodes without an end, which a restarted server continues
 *   corrections.jsonl    better answers by people
 *   starts.json          how often the server was started
 *   rollback.json        the version that is being restored
 */

import { chmodSync, statSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import type { z } from "zod";
import { isAborted, NlacError, throwIfAborted } from "../base/errors.ts";
import { checkConfig } from "../base/validation.ts";
import { closeEnvironment, tasksOf } from "../contract/checks.ts";
import type { Environment } from "../contract/environment.ts";
import { type Progress, silentProgress } from "../display/progress.ts";
import { openEnvironment } from "../environments/registry.ts";
import { servedEpisodesPath } from "../episodes/records.ts";
import { succeeded } from "../episodes/trajectory.ts";
import { onDisk } from "../files/disk.ts";
import { Learner } from "../learner/learner.ts";
import { parseRecipe, type Recipe, type RecipeInput } from "../recipe/recipe.ts";
import { baseOf } from "../recipe/run-recipe.ts";
import {
  endOf,
  type OpenedRun,
  openRun,
  removeUnsaved,
  requireGiven,
  requireSameRecipe,
  setAside,
} from "../recipe/train-recipe.ts";
import { warmUpRun } from "../recipe/warm-up-run.ts";
import { checkpointPath, hasCheckpoint } from "../run/checkpoints.ts";
import { isRun, readDescription } from "../run/description.ts";
import { lockRun } from "../run/directory.ts";
import { endless } from "../run/training-run.ts";
import type { Episodes } from "../serve/episodes.ts";
import { type Redact, redactIds } from "../serve/redact.ts";
import { badRequest, failureOf } from "../serve/request-error.ts";
import { type ServeOptions, type Server, serve } from "../serve/server.ts";
import { openSinks, Reporting } from "../sinks/reporting.ts";
import { type Correction, Corrections, correctionsConfig } from "./corrections.ts";
import { DeviceShare } from "./device-share.ts";
import { addEndpoints } from "./endpoints.ts";
import { EpisodeQueue } from "./episode-queue.ts";
import { GuardRails, guardConfig } from "./guard-rails.ts";
import { HeldOut, heldOutConfig } from "./held-out.ts";
import { PinnedVersions } from "./pinned-versions.ts";
import { answerIds, createRecording, RecordedEpisodes } from "./recorded-episodes.ts";
import { SharedLearner } from "./shared-learner.ts";
import { Tasks, tasksConfig } from "./tasks.ts";
import { changesIn, Trainer } from "./trainer.ts";
import { findVersion, listVersions, nextStart } from "./versions.ts";

/** Options of `serveAndTrain`; those of `serve` have the same meaning. */
export interface ServeAndTrainOptions
  extends Pick<
    ServeOptions,
    | "host"
    | "port"
    | "token"
    | "tokens"
    | "maxWaiting"
    | "maxBodyBytes"
    | "allowHosts"
    | "corsOrigins"
    | "redact"
  > {
  /**
   * How to train, with which model: NLAC, RFT, GRPO, which needs episodes with x-episode-group, or
   * SFT, which needs corrections. A run is continued with the recipe that started it.
   */
  recipe: RecipeInput;
  /** The run; one that exists is continued. Default: runs/<recipe>-served. */
  directory?: string;
  /** What clients call the model. Default: the last part of the recipe's model. */
  name?: string;
  /**
   * Bound on the 99th percentile of the time from a request to its first token, in milliseconds. A
   * smaller one leaves less of the device to training. Default 500.
   */
  maxFirstTokenMs?: number;
  /**
   * Time that a training job waits for a gap between requests, in milliseconds; then new requests
   * wait for it, whatever their latency. Default 60,000.
   */
  maxTrainingWaitMs?: number;
  /** Open episodes without an answer or reward for this long are ended. Default 24 hours. */
  maxIdleMs?: number;
  /** Recorded episodes and corrections are deleted at this age. Default: never. */
  keepMs?: number;
  /** When an earlier version of the weights is restored. */
  guard?: z.input<typeof guardConfig>;
  /** How corrections are imitated. With SFT, the recipe says so. */
  corrections?: z.input<typeof correctionsConfig>;
  /** Maximum number of corrections that the run stores. Default 10,000. */
  maxCorrections?: number;
  /** Tasks for GET /v1/tasks/next. Default: the training tasks of the recipe's environment. */
  tasks?: readonly unknown[];
  /**
   * Held-out tasks for GET /v1/tasks/next?split=test. Default: the test tasks of the recipe's
   * environment.
   */
  testTasks?: readonly unknown[];
  /** How success on held-out episodes (x-episode-split: test) is measured. */
  heldOut?: z.input<typeof heldOutConfig>;
  /** How tasks are leased. */
  leases?: z.input<typeof tasksConfig>;
  /** Pinned versions, which clients request by name, in memory at a time. Default 1. */
  maxPinned?: number;
  /**
   * Ends the start, which takes minutes if the recipe has a warm-up: `serveAndTrain` then throws
   * ERR_ABORTED. The next start continues the warm-up. A server that listens is ended by `close`.
   */
  signal?: AbortSignal;
  progress?: Progress;
  /** Called with messages for the operator. */
  log?: (line: string) => void;
}

/** A server that trains its model. */
export interface TrainingServer extends Server {
  /** The run directory. */
  readonly run: string;
  /** Names the current weights. */
  readonly version: string;
  /** Updates so far. */
  readonly updates: number;
}

/** Maximum length of a run's corrections, with their prompts, in tokens. */
const maxCorrectionTokens = 16_000_000;
/** Checkpoints that a served run keeps at least, to go back to. */
const keptCheckpoints = 5;

/**
 * Serves a model and trains it on the episodes of its clients, until it is closed. Ongoing requests
 * come first; updates run between them. A run that ended before its first checkpoint is renamed, and
 * a new one starts.
 *
 * @throws NlacError ERR_ABORTED; ERR_CONFIG for options or a recipe that cannot be served; ERR_RUN for a
 *   directory that another process uses or that has the run of another recipe; as `serve` and
 *   `trainRecipe`
 */
export async function serveAndTrain(options: ServeAndTrainOptions): Promise<TrainingServer> {
  const { log = () => {}, progress = silentProgress, signal } = options;
  const given = requireServable(parseRecipe(options.recipe, "serveAndTrain"));
  const path = resolve(options.directory ?? `runs/${given.name}-served`);
  const guard = new GuardRails(checkConfig(guardConfig, options.guard));
  const correctionOptions = checkConfig(correctionsConfig, options.corrections);
  if (given.algorithm === "sft" && options.corrections !== undefined)
    throw new NlacError("ERR_CONFIG", "corrections: with SFT, set epochs and rates in the recipe's config.");
  const groupSize = "groupSize" in given.config ? given.config.groupSize : 1;
  const leases = checkConfig(tasksConfig, { groupSize, ...options.leases });
  const heldOut = new HeldOut(checkConfig(heldOutConfig, options.heldOut));
  const maxFirstTokenMs = options.maxFirstTokenMs ?? 500;
  const { maxTrainingWaitMs = 60_000, maxIdleMs = 24 * 3_600_000, keepMs, maxPinned = 1 } = options;
  const { maxCorrections = 10_000 } = options;
  requireAboveZero({ maxFirstTokenMs, maxTrainingWaitMs, maxIdleMs, keepMs, maxPinned, maxCorrections });

  const closers: (() => unknown)[] = [];
  try {
    const isFound = isRun(path);
    // Without checkpoints it may still have episodes, if somebody deleted its checkpoints.
    const file = servedEpisodesPath(path);
    const recorded = onDisk(file, () => statSync(file, { throwIfNoEntry: false }))?.size ?? 0;
    const isContinued = isFound && (hasCheckpoint(path) || recorded > 0);
    if (isFound && !isContinued) {
      requireSameRecipe(given, path);
      setAside(path, log);
    }
    const lock = isContinued ? lockRun(path) : undefined;
    const release = () => lock?.release();
    closers.push(release);
    const recipe = lock ? requireServable(requireSameRecipe(given, path)) : given;
    const environment = await openServedEnvironment(recipe);
    closers.push(() => closeEnvironment(environment));
    await requireGiven(recipe, environment, lock !== undefined);

    const sinks = await openSinks(recipe.report);
    const controller = new AbortController();
    const abort = () => controller.abort(signal!.reason);
    throwIfAborted(signal);
    signal?.addEventListener("abort", abort);
    const starting = { signal: controller.signal, progress, log };
    const opened = await openWarm(environment, recipe, path, lock, starting).finally(() =>
      signal?.removeEventListener("abort", abort),
    );
    const { model: learner, run, from } = opened;
    closers.splice(closers.indexOf(release), 1); // the run has the lock now
    let isServing = false;
    closers.push(() => !isServing && lock === undefined && removeUnsaved(path));
    const described = readDescription(path) as { id: string; recipe: Record<string, unknown> };
    const { id, recipe: resolved } = described;
    const reporting = new Reporting(sinks, { id, name: recipe.name, directory: path, recipe: resolved });
    closers.push(() => reporting.close(log));
    let running = true;
    closers.push(() => running && run.close());

    const resumeVersion = (name: string) =>
      Learner.resume(join(checkpointPath(path, findVersion(path, name).checkpoint), "learner"), {
        ...{ ...recipe.learner, base: baseOf(recipe) },
      });
    const damaged = new Set<string>();
    const versions = () =>
      listVersions(path, ({ message }) => {
        if (!damaged.has(message)) log(message);
        damaged.add(message);
      });
    const keptVersions = () => versions().map((kept) => kept.name);
    const pinned = new PinnedVersions(resumeVersion, (name) => keptVersions().includes(name), maxPinned);
    const model = new SharedLearner(learner, {
      share: new DeviceShare({ maxFirstTokenMs }),
      start: nextStart(path),
      changes: from === undefined || from.saved.warmup !== undefined ? 0 : changesIn(from.saved),
      maxTrainingWaitMs,
      keptVersions,
      pinned,
    });
    closers.push(
      () => model.dispose(),
      () => pinned.dispose(),
    );

    const { config } = recipe;
    const policyRate = "policyLearningRate" in config ? config.policyLearningRate : config.learningRate;
    const { learningRate = policyRate } = correctionOptions;
    const corrections = new Corrections(
      join(path, "corrections.jsonl"),
      {
        ...correctionOptions,
        ...(recipe.algorithm === "sft" && { epochs: recipe.config.epochs }),
        learningRate,
      },
      { count: maxCorrections, tokens: maxCorrectionTokens },
    );
    closers.push(() => corrections.close());
    createRecording(file);
    const maxPromptTokens = maxPromptOf(recipe);
    const queue = new EpisodeQueue(file, model, { groupSize, maxPromptTokens, log });
    const tasks = new Tasks(options.tasks ?? (await ownTasks(environment, "train")), leases);
    const testTasks = new Tasks(options.testTasks ?? (await ownTasks(environment, "test")), {
      ...leases,
      order: "even",
      groupSize: 1,
    });

    const trainer = new Trainer(run, controller, {
      ...{ recipe, environment, model, queue, corrections, guard, heldOut, reporting, versions, log },
      runOptions: { progress, description: {}, ...recipe.run },
    });
    // A checkpoint exists before an episode is accepted, so that a run with episodes can be
    // resumed.
    throwIfAborted(signal);
    running = false;
    closers.push(() => trainer.stop());
    await trainer.start();
    throwIfAborted(signal);

    const name = options.name ?? nameOf(recipe);
    const server = await serve({
      ...options,
      ...{ learner: model, name, log, record: file, openLog: join(path, "open.jsonl") },
      ...(["text", "tool"].includes(environment.actionFormat) && { actionFormat: environment.actionFormat }),
      maxIdleMs,
      onRecord(record) {
        guard.add(record, model.start);
        for (const leased of [tasks, testTasks]) leased.finish(record.task, succeeded(record));
        if (record.split === "test") heldOut.add(record, model.start);
        queue.add(record);
      },
      extend: (extension) => {
        const recordedEpisodes = new RecordedEpisodes(file, model, extension.episodes!);
        addEndpoints(extension, {
          guard,
          tasks,
          testTasks,
          status: () => ({
            version: model.version,
            updates: trainer.updates,
            episodes_open: extension.episodes!.open,
            episodes_dropped: extension.episodes!.forgotten,
            episodes_waiting: queue.length,
            corrections: corrections.size,
            corrections_waiting: corrections.waiting,
            failure: trainer.failure === undefined ? null : failureOf(trainer.failure).message,
            training_share: model.share.trainingShare,
            first_token_ms_p99: model.share.firstTokenMs ?? null,
            max_first_token_ms: maxFirstTokenMs,
            overdue_jobs: model.share.overdue,
            metrics: guard.quality,
            held_out_waiting: heldOut.waiting,
            tasks: { leased: tasks.leased, expired: tasks.expired, passed_over: tasks.passedOver },
          }),
          versions,
          rollBack: (name) => trainer.rollBack(name),
          recordedState: (episode, turn) => recordedEpisodes.stateOf(episode, turn),
          answerIds: (state, answer) => answerIds(model, state, answer),
          correct(correction) {
            const stored = options.redact ? redacted(correction, options.redact, model) : correction;
            requireFits(stored, maxPromptTokens, Math.min(model.maxPositions, maxTokensOf(recipe)));
            const kept = corrections.add(stored);
            queue.wake();
            return kept;
          },
          async deleteRecorded(episode) {
            const deleted = await extension.episodes!.deleteRecorded((record) => record.task === episode);
            if (deleted) trainer.reload();
            // Last: until now more of them may have been posted.
            await corrections.remove((correction) => correction.episode === episode);
            return deleted;
          },
        });
        if (keepMs !== undefined)
          closers.push(deleteOld(keepMs, extension.episodes!, corrections, trainer, log));
      },
    });
    isServing = true;
    let closing: Promise<void> | undefined;
    const close = (graceMs?: number) => {
      closers.push(() => server.close(graceMs));
      return closeAll(closers);
    };
    return {
      url: server.url,
      run: path,
      get recorded() {
        return server.recorded;
      },
      get version() {
        return model.version;
      },
      get updates() {
        return trainer.updates;
      },
      close: (graceMs) => (closing ??= close(graceMs)),
    };
  } catch (error) {
    await closeAll(closers);
    throw error;
  }
}

/** Opens the run and warms up its model. Throws ERR_ABORTED; see `openRun` and `warmUpRun`. */
async function openWarm(
  environment: Environment,
  ...given: Parameters<typeof openRun>
): Promise<OpenedRun<Learner>> {
  const [recipe, path, lock] = given;
  const opened = await openRun(...given);
  try {
    // The run, with its checkpoints and samples, contains what clients say.
    if (!lock) onDisk(path, () => chmodSync(path, 0o700));
    if (await warmUpRun({ ...opened, recipe, environment })) return opened;
    throw new NlacError("ERR_ABORTED", "The warm-up was stopped: the next start continues it.");
  } catch (error) {
    opened.run.close(...endOf(error));
    if (!lock) removeUnsaved(path);
    await opened.model.dispose();
    throw error;
  }
}

/** Throws ERR_CONFIG unless the given values are above 0. */
function requireAboveZero(values: Record<string, number | undefined>): void {
  for (const [name, value] of Object.entries(values))
    if (value !== undefined && !(value > 0)) throw new NlacError("ERR_CONFIG", `${name} must be above 0.`);
}

/** The longest text that the recipe's method trains on, if it has a limit. */
function maxTokensOf({ config }: Recipe): number {
  return "maxTokens" in config ? config.maxTokens : Number.POSITIVE_INFINITY;
}

/**
 * The longest prompt that is trained on. SFT has none besides `maxTokens`, as in `nlac train`: its
 * `maxPromptTokens` is for evaluation.
 */
function maxPromptOf({ algorithm, config }: Recipe): number {
  return algorithm === "sft" ? Number.POSITIVE_INFINITY : config.maxPromptTokens;
}

/** Throws a RequestError for a correction that is too long to be imitated. */
function requireFits(
  { prompt, response }: Pick<Correction, "prompt" | "response">,
  maxPrompt: number,
  most: number,
): void {
  if (prompt.length > maxPrompt)
    throw badRequest(
      `The turn's prompt has ${prompt.length} tokens; the recipe's maxPromptTokens is ${maxPrompt}.`,
      "turn",
      "prompt_too_long",
    );
  const tokens = prompt.length + response.length;
  if (tokens > most)
    throw badRequest(
      `The turn's prompt and the answer have ${tokens} tokens; ${most} can be trained on.`,
      "content",
    );
}

function redacted(correction: Omit<Correction, "id">, redact: Redact, { tokenizer }: SharedLearner) {
  const ids = (given: readonly number[]) => redactIds(given, redact, tokenizer!);
  const { prompt, response, text } = correction;
  return { ...correction, prompt: ids(prompt), response: ids(response), text: redact(text) };
}

/** Minimum and maximum interval between searches for old episodes, in milliseconds. */
const deletionMs = { least: 60_000, most: 3_600_000 };

/**
 * Deletes episodes and corrections of the age `keepMs`, now and every hour. Returns how to stop it.
 */
function deleteOld(
  keepMs: number,
  episodes: Episodes,
  corrections: Corrections,
  trainer: Trainer,
  log: (line: string) => void,
): () => Promise<void> {
  const remove = async () => {
    const first = Date.now() - keepMs;
    try {
      await corrections.remove(({ time }) => time < first);
      if (await episodes.deleteRecorded(({ time = 0 }) => time < first)) trainer.reload();
    } catch (error) {
      if (!isAborted(error)) log(`old episodes were not deleted: ${(error as Error).message}`);
    }
  };
  let removing = remove();
  const everyMs = Math.max(deletionMs.least, Math.min(keepMs, deletionMs.most));
  const timer = setInterval(() => {
    removing = removing.then(remove);
  }, everyMs).unref();
  return async () => {
    clearInterval(timer);
    await removing;
  };
}

/** Closes in reverse order. All are closed even if one fails. Throws the first failure. */
async function closeAll(closers: (() => unknown)[]): Promise<void> {
  const failures: unknown[] = [];
  for (const close of closers.splice(0).reverse()) {
    try {
      await close();
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
}

/**
 * The recipe with no limit of iterations or steps. Throws ERR_CONFIG for one that cannot be served.
 */
function requireServable(recipe: Recipe): Recipe {
  const { algorithm, config } = recipe;
  if (algorithm !== "nlac" && algorithm !== "rft" && algorithm !== "grpo" && algorithm !== "sft")
    throw new NlacError(
      "ERR_CONFIG",
      `nlac serve --train supports NLAC, RFT, GRPO and SFT, not ${algorithm}.`,
    );
  if (algorithm === "sft") {
    if (config.demonstrationsPerTask > 0)
      throw new NlacError(
        "ERR_CONFIG",
        "config.demonstrationsPerTask: a served run imitates corrections; leave this field out.",
      );
  } else {
    if (config.episodesPerIteration === 0)
      throw new NlacError("ERR_CONFIG", "config.episodesPerIteration: a served run needs 1 or more.");
    config.iterations = endless;
    config.environmentSteps = 0;
  }
  if ("recorded" in config && config.recorded.length > 0)
    throw new NlacError(
      "ERR_CONFIG",
      "config.recorded: a served run records its own episodes; leave this field out.",
    );
  if (recipe.rollouts !== undefined)
    throw new NlacError(
      "ERR_CONFIG",
      "rollouts: clients play the episodes of a served run; leave this field out.",
    );
  recipe.run.samplesPerUpdate = 0;
  recipe.run.keepCheckpoints = Math.max(recipe.run.keepCheckpoints, keptCheckpoints);
  return recipe;
}

/** The recipe's environment. `recorded` gets a placeholder task that is never played. */
async function openServedEnvironment({ environment: named }: Recipe): Promise<Environment> {
  const environment = await openEnvironment(named.name, named.options, named.stepTimeout);
  if (environment.name !== "recorded") return environment;
  return { ...environment, tasks: async (split) => (split === "train" ? [undefined] : []) };
}

async function ownTasks(environment: Environment, split: "train" | "test"): Promise<readonly unknown[]> {
  return environment.name === "recorded" ? [] : tasksOf(environment, split);
}

function nameOf({ name, model }: Recipe): string {
  return typeof model === "string" ? basename(resolve(model)).replace(/\.gguf$/, "") : name;
}
