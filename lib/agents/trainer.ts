/**
 * Trains a served learner until it is stopped. A failure, a rollback or a deleted episode ends the
 * algorithm at its last boundary; it then continues from a checkpoint, while requests are served.
 */

import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isAborted, messageOf, NlacError } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";
import { Learner } from "../learner/learner.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { baseOf } from "../recipe/run-recipe.ts";
import { endOf, trainModel } from "../recipe/train-recipe.ts";
import { checkpointPath, chooseCheckpoint, type SavedState } from "../run/checkpoints.ts";
import { lockRun, RunDirectory, type RunOptions } from "../run/directory.ts";
import type { TrainingResult } from "../run/training-run.ts";
import type { Reporting } from "../sinks/reporting.ts";
import type { Corrections } from "./corrections.ts";
import type { EpisodeQueue } from "./episode-queue.ts";
import type { GuardRails } from "./guard-rails.ts";
import type { HeldOut } from "./held-out.ts";
import { ServedRun } from "./served-run.ts";
import type { SharedLearner } from "./shared-learner.ts";
import {
  findVersion,
  nextStart,
  notedRollback,
  noteRollback,
  type ServedState,
  savedServed,
  servedStateOf,
  type Version,
} from "./versions.ts";

/** Milliseconds before training continues after a failure: at first, and at most. */
const [firstRetryMs, lastRetryMs] = [1_000, 60_000];

export interface TrainerOptions {
  recipe: Recipe;
  environment: Environment;
  model: SharedLearner;
  queue: EpisodeQueue;
  corrections: Corrections;
  guard: GuardRails;
  heldOut: HeldOut;
  reporting: Reporting;
  /** The kept versions that are not known to be damaged, the newest first. */
  versions: () => Version[];
  /** Options of the run directory, with which it is opened again. */
  runOptions: Omit<RunOptions, "signal" | "lock">;
  log: (line: string) => void;
}

export class Trainer {
  readonly #options: TrainerOptions;
  #run: RunDirectory;
  #controller: AbortController;
  #stopping = false;
  /** The version to go back to, until a checkpoint with its weights is saved. */
  #rollBackTo: Version | undefined;
  /** Checkpoints of versions that could not be restored, because they are damaged. */
  readonly #damaged = new Set<number>();
  /** How often each correction was imitated before the version that training went back to. */
  #corrected: ServedState["corrections"] = {};
  #updates = 0;
  #failure: unknown;
  #loop: Promise<void> | undefined;
  /** Called with the failure, if there is one. */
  #begun = (_?: unknown): void => {};

  /** @param controller fires the signal of `run` */
  constructor(run: RunDirectory, controller: AbortController, options: TrainerOptions) {
    this.#run = run;
    this.#controller = controller;
    this.#options = options;
  }

  get updates(): number {
    return this.#updates;
  }

  /** The last failure, while training has not continued since. */
  get failure(): unknown {
    return this.#failure;
  }

  /**
   * Starts. Resolves when there is a checkpoint; a later failure is reported, and training continues
   * from it. Throws the failure of the first checkpoint, from which nothing could continue.
   */
  async start(): Promise<void> {
    const begun = new Promise<unknown>((resolve) => {
      this.#begun = resolve;
    });
    this.#loop = this.#train();
    const failure = await begun;
    if (failure !== undefined && this.#options.versions().length === 0) throw failure;
    this.#continueRollback();
  }

  /** Restores a version that was requested before the server was killed. */
  #continueRollback(): void {
    try {
      const noted = notedRollback(this.#run.path);
      if (noted !== undefined) this.#goBack(findVersion(this.#run.path, noted), "it was requested");
    } catch (error) {
      this.#options.log(`a version that was requested is not restored: ${(error as Error).message}`);
    }
  }

  /** Stops at the last boundary, saves a checkpoint, and closes the run. */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#controller.abort();
    await this.#loop;
  }

  /**
   * Goes back to a kept version, also if the server is killed meanwhile. Throws ERR_CHECKPOINT for
   * another name, ERR_IO.
   */
  rollBack(name: string): Version {
    const version = findVersion(this.#run.path, name);
    noteRollback(this.#run.path, name);
    this.#goBack(version, "it was requested");
    return version;
  }

  /** Lets the algorithm forget episodes that were deleted from the recording. */
  reload(): void {
    this.#controller.abort();
    this.#options.queue.reload();
  }

  #goBack(version: Version, reason: string): void {
    this.#options.log(`restored version ${version.name}: ${reason}`);
    this.#rollBackTo = version;
    // A checkpoint is saved before training goes back. It must not replace this one.
    this.#run.spared = [version.checkpoint];
    this.#controller.abort();
  }

  async #train(): Promise<void> {
    const { recipe, environment, model, reporting, log } = this.#options;
    let target: Version | undefined;
    for (let retryMs = 0; ; ) {
      const updates = this.#updates;
      let failed = false;
      let ending: Parameters<RunDirectory["close"]> = ["stopped"];
      let result: TrainingResult | undefined;
      try {
        model.signal = this.#controller.signal;
        result = await trainModel(recipe, model, environment, this.#servedRun(target));
      } catch (error) {
        // A deletion or a rollback may come while the episodes are read: nothing was trained then.
        if (!isAborted(error) || !this.#controller.signal.aborted) {
          failed = true;
          ending = endOf(error);
          this.#fail(error);
        }
      }
      try {
        this.#run.close(...ending);
      } catch (error) {
        failed = true;
        this.#fail(error);
      }
      if (this.#stopping && result !== undefined) reporting.ended(result);
      if (this.#updates > updates) retryMs = 0;
      // Retries until the run is open; the server continues to answer.
      for (;;) {
        if (this.#stopping) return;
        if (failed) {
          retryMs = Math.min(2 * retryMs || firstRetryMs, lastRetryMs);
          await sleep(retryMs, undefined, { signal: this.#stopSignal() }).catch(() => undefined);
          if (this.#stopping) return;
        }
        try {
          target = await this.#reopen(failed);
          break;
        } catch (error) {
          failed = true;
          this.#fail(error);
        }
      }
      if (this.#stopping) return this.#run.close();
      log(`training continues with version ${model.version}`);
    }
  }

  /** @param target the version to go back to, if the newest checkpoint is of another one */
  #servedRun(target: Version | undefined): ServedRun {
    const { recipe, model, queue, corrections, guard, heldOut, reporting } = this.#options;
    return new ServedRun({
      ...{ directory: this.#run, recipe, model, queue, corrections, guard, heldOut, reporting },
      saveFirst: target !== undefined,
      // SFT alone does not repeat what led to the rollback. Other methods keep imitating corrections,
      // of which the restored weights may know nothing.
      ...(target && recipe.algorithm !== "sft" && { corrected: this.#corrected }),
      onBoundary: () => this.#check(),
      onCheckpoint: () => {
        // Unless another rollback was requested since.
        if (this.#rollBackTo === target) {
          this.#rollBackTo = undefined;
          if (target !== undefined) noteRollback(this.#run.path, undefined);
        }
        this.#begun();
      },
      onUpdate: (updates) => {
        // A restored run has a checkpoint; a new run saves its first one before its first update.
        this.#begun();
        this.#updates = updates;
        this.#failure = undefined;
      },
    });
  }

  /** Called at a boundary: goes back to an earlier version if a metric fell too far. */
  #check(): void {
    const { guard } = this.#options;
    if (this.#rollBackTo !== undefined) return;
    const versions = this.#options.versions().filter(({ checkpoint }) => !this.#damaged.has(checkpoint));
    this.#run.spared = guard.best(versions).map(({ checkpoint }) => checkpoint);
    const verdict = guard.verdict(versions);
    if (verdict !== undefined) this.#goBack(verdict.version, verdict.reason);
  }

  #fail(error: unknown): void {
    if (this.#failure === undefined) this.#options.reporting.failed(error);
    this.#failure = error;
    this.#options.log(`training paused: ${messageOf(error)}`);
    this.#begun(error);
  }

  /** Fires when the trainer is stopped. */
  #stopSignal(): AbortSignal {
    this.#controller = new AbortController();
    return this.#controller.signal;
  }

  /**
   * Opens the run again, with the weights that training continues from: those of the version to go
   * back to, after a failure those of the newest checkpoint, and else the current ones.
   *
   * @returns the version that it went back to, if it did: a checkpoint should be saved soon
   */
  async #reopen(failed: boolean): Promise<Version | undefined> {
    const { model, guard, runOptions, log } = this.#options;
    const { path } = this.#run;
    const lock = lockRun(path);
    try {
      const from = await chooseCheckpoint(path, { warn: log });
      // Counted before weights are loaded: if it failed after that, they would stay in memory.
      const start = failed || this.#rollBackTo !== undefined ? nextStart(path) : undefined;
      const opened = await this.#openTarget();
      const target = opened?.target;
      if (start !== undefined && (failed || target !== undefined)) {
        const changes = target ? Number(target.name.split(".")[1]) : changesIn(from.saved);
        await model.replace(opened?.learner ?? (await this.#resume(from.path, false)), start, changes);
        guard.reset();
      }
      this.#controller = new AbortController();
      const options = { ...runOptions, signal: this.#controller.signal, lock };
      this.#run = await RunDirectory.resume(path, model, options, from);
      const wanted = this.#rollBackTo;
      this.#run.spared = [target, wanted].flatMap((version) => version?.checkpoint ?? []);
      // Another rollback was requested in the meantime: training stops at once and goes back again.
      if (wanted !== target) this.#controller.abort();
      return target;
    } catch (error) {
      lock.release();
      throw error;
    }
  }

  /** Opens the weights of the version to go back to, if there is one. One that is damaged is given up. */
  async #openTarget(): Promise<{ target: Version; learner: Learner } | undefined> {
    const { path } = this.#run;
    for (;;) {
      const target = this.#rollBackTo;
      if (target === undefined) return undefined;
      try {
        this.#corrected = servedStateOf(path, target.checkpoint)!.corrections;
        return { target, learner: await this.#resume(checkpointPath(path, target.checkpoint), true) };
      } catch (error) {
        if (!(error instanceof NlacError) || error.code !== "ERR_CHECKPOINT") throw error;
        this.#options.log(`version ${target.name} is not restored: ${error.message}`);
        this.#damaged.add(target.checkpoint);
        // Unless another rollback was requested since.
        if (this.#rollBackTo !== target) continue;
        this.#rollBackTo = undefined;
        noteRollback(path, undefined);
      }
    }
  }

  /** The learner of a checkpoint. Throws ERR_CHECKPOINT, ERR_IO. */
  #resume(checkpoint: string, verify: boolean): Promise<Learner> {
    const { recipe } = this.#options;
    const { seed } = recipe.config;
    const options = { ...recipe.learner, seed, base: baseOf(recipe), verify };
    return Learner.resume(join(checkpoint, "learner"), options);
  }
}

/**
 * The changes of the weights in a checkpoint. Throws ERR_CHECKPOINT for one of a warm-up, or of a
 * run that was not served.
 */
export function changesIn({ state, warmup }: SavedState): number {
  if (warmup !== undefined)
    throw new NlacError(
      "ERR_CHECKPOINT",
      "The only checkpoint is one of the warm-up: start the server again.",
    );
  const parsed = savedServed.safeParse(state);
  if (!parsed.success)
    throw new NlacError("ERR_CHECKPOINT", "The checkpoint was not made by nlac serve --train.");
  return parsed.data.served.changes;
}
