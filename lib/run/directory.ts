/**
 * The run directory: everything that a training produces and needs to resume.
 *
 *   run.json             the resolved recipe, the start time, and the builds that trained it
 *   metrics.jsonl        one record per row: { step, time, values }
 *   events.out.tfevents… the same for TensorBoard
 *   trajectories.jsonl   one record per episode: every text, token id and log probability
 *   evaluations.jsonl    the same for the episodes of evaluations
 *   samples.jsonl        some complete training samples of each update; they refer to the episodes
 *   draws.jsonl          the transitions that each update drew, with L1 and verdicts
 *   probes.jsonl         fixed transitions, explained at every evaluation
 *   status.json          running, finished, stopped or failed; how far; rewritten every 5 s
 *   checkpoints/N/       state.json, checksums.json, learner/ (θ, θ̄, moments, tokenizer);
 *                        reward-model/, the same of a reward model, if there is one;
 *                        sampler.bin and replay.json, if there is a replay buffer
 *   checkpoints/N.aside  one that was damaged or skipped when the run was resumed
 *   latest               the name of the newest checkpoint
 *   lock                 the process that writes here
 *
 * A checkpoint is written under a temporary name, synced and renamed; `latest` changes last. It
 * stores the length and SHA-256 of every record file, so that a resumed run truncates and repeats
 * the rest.
 */

import { randomUUID } from "node:crypto";
import { mkdirSync, renameSync, rmSync } from "node:fs";
import { basename, join } from "node:path";
import { type Progress, silentProgress } from "../display/progress.ts";
import {
  type EvaluationRecord,
  evaluationsPath,
  readEpisodes,
  toRecord,
  trajectoriesPath,
} from "../episodes/records.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import { writeChecksums } from "../files/checksums.ts";
import { type FileStart, makeDirectory, onDisk, removeIfPossible, syncDirectory } from "../files/disk.ts";
import { type Lock, lockNow } from "../files/lock.ts";
import { countLines, RecordWriter } from "../files/records.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import type { LanguageModel } from "../model/language-model.ts";
import {
  checkpointNumbers,
  checkpointPath,
  chooseCheckpoint,
  emptyStart,
  nextNumber,
  type RecordFile,
  removeCheckpoints,
  removeUnfinished,
  rewardModelName,
  type SavedState,
  setAsideAfter,
  type WholeCheckpoint,
} from "./checkpoints.ts";
import { isRun, readDescription, requireNewRun, writeDescription } from "./description.ts";
import { type MetricsRow, metricsPath } from "./metrics.ts";
import type { DrawsRecord, ProbeRecord, SampleRecord } from "./samples.ts";
import { type RunStatus, StatusWriter } from "./status.ts";
import { EventWriter } from "./tensorboard.ts";
import type { Checkpoint, TrainingRun } from "./training-run.ts";

/** Options of a run directory. */
export interface RunOptions {
  /** Stops the run. Default: a signal that never fires. */
  signal?: AbortSignal;
  /** Default: nothing is shown. */
  progress?: Progress;
  /** Contents of run.json: the resolved recipe and versions. Default: none. */
  description?: Record<string, unknown>;
  /** Seconds between checkpoints; 0 saves after every update. Default 600. */
  checkpointSeconds?: number;
  /** Number of checkpoints to keep. Default 2. */
  keepCheckpoints?: number;
  /** Training samples to record per update. Default 4. */
  samplesPerUpdate?: number;
  /** Updates between samples that are recorded in detail; 0 is never. Default 8. */
  detailEvery?: number;
  /** Maximum bytes of an update's figures per token in samples.jsonl. Default 65,536. */
  tokenBytes?: number;
  /** Fixed transitions to explain at every evaluation. Default 8. */
  probes?: number;
  /** The run's lock, if the caller has taken it to resume. `close` releases it. */
  lock?: Lock;
}

/** A run on disk: metrics, episodes, samples, checkpoints. */
export class RunDirectory implements TrainingRun {
  readonly path: string;
  readonly signal: AbortSignal;
  readonly progress: Progress;
  readonly samplesPerUpdate: number;
  /** Numbers of checkpoints that are kept besides the newest ones. */
  spared: readonly number[] = [];
  readonly detailEvery: number;
  readonly tokenBytes: number;
  readonly probes: number;
  readonly #id: string;
  readonly #options: RunOptions;
  readonly #lock: Lock;
  readonly #from: WholeCheckpoint | undefined;
  readonly #model: LanguageModel | undefined;
  readonly #metrics: RecordWriter;
  readonly #trajectories: RecordWriter;
  readonly #evaluations: RecordWriter;
  readonly #samples: RecordWriter;
  readonly #draws: RecordWriter;
  readonly #probed: RecordWriter;
  readonly #status: StatusWriter;
  readonly #events: EventWriter;
  readonly #eventsName: string;
  #rowCount = 0;
  #lastCheckpoint = performance.now();

  /** Starts a run in a new or empty directory. Throws ERR_RUN, ERR_IO. */
  static create(path: string, options: RunOptions = {}): RunDirectory {
    requireNewRun(path);
    makeDirectory(path);
    const lock = lockRun(path);
    try {
      // Another process may have started a run here in the meantime.
      if (isRun(path)) requireNewRun(path);
      makeDirectory(join(path, "checkpoints"));
      writeDescription(path, { id: randomUUID(), ...options.description });
      return new RunDirectory(path, options, lock);
    } catch (error) {
      // Without run.json, a directory with anything in it could neither be resumed nor used again.
      if (!isRun(path)) rmSync(join(path, "checkpoints"), { recursive: true, force: true });
      lock.release();
      throw error;
    }
  }

  /**
   * Continues the run in `path` from `from`, by default its newest undamaged checkpoint. `model`
   * was resumed from that checkpoint. Newer checkpoints are set aside.
   * @throws NlacError ERR_RUN, ERR_CHECKPOINT, ERR_IO
   */
  static async resume(
    path: string,
    model: LanguageModel,
    options: RunOptions = {},
    from?: WholeCheckpoint,
  ): Promise<RunDirectory> {
    const lock = options.lock ?? lockRun(path);
    try {
      const checkpoint = from ?? (await chooseCheckpoint(path));
      const root = join(path, "checkpoints");
      if (setAsideAfter(path, checkpoint.number).length > 0) syncDirectory(root);
      writeAtomically(join(path, "latest"), basename(checkpoint.path));
      return new RunDirectory(path, options, lock, checkpoint, model);
    } catch (error) {
      lock.release();
      throw error;
    }
  }

  private constructor(
    path: string,
    options: RunOptions,
    lock: Lock,
    from?: WholeCheckpoint,
    model?: LanguageModel,
  ) {
    this.path = path;
    this.signal = options.signal ?? new AbortController().signal;
    this.samplesPerUpdate = options.samplesPerUpdate ?? 4;
    this.detailEvery = options.detailEvery ?? 8;
    this.tokenBytes = options.tokenBytes ?? 2 ** 16;
    this.probes = options.probes ?? 8;
    this.#id = String(readDescription(path).id);
    this.#options = options;
    this.#lock = lock;
    this.#from = from;
    this.#model = model;
    const start = (name: RecordFile): FileStart => from?.starts[name] ?? emptyStart();
    this.#metrics = new RecordWriter(metricsPath(path), start("metrics"));
    this.#rowCount = countLines(this.#metrics.path); // not read: they may be damaged, and are not needed
    this.#trajectories = new RecordWriter(trajectoriesPath(path), start("trajectories"));
    this.#evaluations = new RecordWriter(evaluationsPath(path), start("evaluations"));
    this.#samples = new RecordWriter(join(path, "samples.jsonl"), start("samples"));
    this.#draws = new RecordWriter(join(path, "draws.jsonl"), start("draws"));
    this.#probed = new RecordWriter(join(path, "probes.jsonl"), start("probes"));
    this.#eventsName =
      from?.saved.files.events.name ?? `events.out.tfevents.${Math.floor(Date.now() / 1000)}.nlac`;
    this.#events = new EventWriter(join(path, this.#eventsName), start("events"));
    this.#status = new StatusWriter(path, options.progress ?? silentProgress);
    this.progress = this.#status;
  }

  get rowCount(): number {
    return this.#rowCount;
  }

  async restore(): Promise<
    { state: Record<string, unknown>; trajectories: Iterable<Trajectory>; replay: string } | undefined
  > {
    if (this.#from === undefined || this.#from.saved.warmup !== undefined) return undefined;
    return {
      state: this.#from.saved.state,
      trajectories: readEpisodes(trajectoriesPath(this.path), this.#model!),
      replay: this.#from.path,
    };
  }

  metrics(step: number, values: Record<string, number>): void {
    // JSON has no NaN: leave out what could not be measured.
    const finite = Object.fromEntries(Object.entries(values).filter(([, value]) => Number.isFinite(value)));
    this.#metrics.append({ step, time: Date.now() / 1000, values: finite } satisfies MetricsRow);
    this.#rowCount++;
    this.#events.scalars(step, finite);
    if ("rollout/success" in finite) this.progress.show({ success: finite["rollout/success"]! });
  }

  trajectory(trajectory: Trajectory): void {
    this.#trajectories.append(toRecord(trajectory));
  }

  evaluation(trajectories: readonly Trajectory[], update: number, split: "train" | "test"): void {
    for (const trajectory of trajectories)
      this.#evaluations.append({
        ...toRecord(trajectory),
        update,
        ...(split === "test" && { split }),
      } satisfies EvaluationRecord);
  }

  sample(record: SampleRecord): void {
    this.#samples.append(record);
  }

  draws(record: DrawsRecord): void {
    this.#draws.append(record);
  }

  probe(record: ProbeRecord): void {
    this.#probed.append(record);
  }

  async checkpoint(checkpoint: Checkpoint, force: boolean): Promise<void> {
    const interval = (this.#options.checkpointSeconds ?? 600) * 1000;
    if (!force && performance.now() - this.#lastCheckpoint < interval) return;
    const root = join(this.path, "checkpoints");
    const earlier = checkpointNumbers(this.path);
    const complete = checkpointPath(this.path, nextNumber(this.path));
    const building = join(root, `.${basename(complete)}`);
    removeUnfinished(this.path);
    try {
      await this.#write(building, checkpoint);
      onDisk(building, () => renameSync(building, complete));
    } catch (error) {
      removeIfPossible(building);
      throw error;
    }
    syncDirectory(root);
    // `latest` must be on disk before the checkpoint that it named before is removed.
    writeAtomically(join(this.path, "latest"), basename(complete));
    const keep = this.#options.keepCheckpoints ?? 2;
    const old = earlier.slice(keep - 1).filter((number) => !this.spared.includes(number));
    removeCheckpoints(this.path, old);
    this.#lastCheckpoint = performance.now();
  }

  /** Writes a checkpoint into a new directory. */
  async #write(path: string, { state, warmup, model, rewardModel, replay }: Checkpoint): Promise<void> {
    onDisk(path, () => mkdirSync(join(path, "learner"), { recursive: true }));
    await model.save(join(path, "learner"));
    if (rewardModel !== undefined) {
      const rewardPath = join(path, rewardModelName);
      onDisk(rewardPath, () => mkdirSync(rewardPath));
      await rewardModel.save(rewardPath);
    }
    replay?.save(path);
    const saved: SavedState = {
      format: 1,
      run: this.#id,
      state,
      ...(warmup !== undefined && { warmup }),
      files: {
        metrics: this.#metrics.seal(),
        trajectories: this.#trajectories.seal(),
        evaluations: this.#evaluations.seal(),
        samples: this.#samples.seal(),
        draws: this.#draws.seal(),
        probes: this.#probed.seal(),
        events: { ...this.#events.seal(), name: this.#eventsName },
      },
    };
    writeAtomically(join(path, "state.json"), JSON.stringify(saved));
    await writeChecksums(path, ["learner", rewardModelName]);
  }

  /**
   * Closes all files and releases the lock, also if that fails. `state` is written to status.json;
   * by default the run was stopped. Throws ERR_IO.
   */
  close(state: Exclude<RunStatus["state"], "running"> = "stopped", error?: RunStatus["error"]): void {
    const episodes = [this.#trajectories, this.#evaluations];
    const records = [this.#metrics, ...episodes, this.#samples, this.#draws, this.#probed];
    const closers = [...records, this.#events].map((file) => () => file.close());
    const failures: unknown[] = [];
    for (const close of [() => this.#status.end(state, error), ...closers]) {
      try {
        close();
      } catch (failure) {
        failures.push(failure);
      }
    }
    this.#lock.release();
    if (failures.length > 0) throw failures[0];
  }
}

/**
 * Locks a run, or a directory of runs, for this process. The lock of an ended process is taken
 * over.
 * @throws NlacError ERR_RUN when it is in use, ERR_IO
 */
export function lockRun(path: string): Lock {
  return lockNow(join(path, "lock"), path, "ERR_RUN");
}
