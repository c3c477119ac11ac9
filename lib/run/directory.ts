/**
 * The run directory: everything a training produced, and everything it needs to go on.
 *
 *   run.json             the recipe as resolved, versions, when it began
 *   metrics.jsonl        one record a row: { step, time, values }
 *   events.out.tfevents… the same for TensorBoard
 *   trajectories.jsonl   one record an episode: every text, id and log probability
 *   samples.jsonl        some training samples of each update with all of their texts
 *   checkpoints/N/       state.json, learner/ (θ, θ̄, moments, tokenizer), sampler.bin, replay.json
 *   latest               the name of the newest complete checkpoint
 *   lock                 the process that is writing here
 *
 * A checkpoint is written beside, synced and renamed; `latest` changes last. It remembers how long every record
 * file was, so that a resumed run cuts off what came after and repeats it.
 */

import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { NlacError } from "../errors.ts";
import type { LanguageModel } from "../model.ts";
import type { Trajectory } from "../rollout/trajectory.ts";
import { type EpisodeRecord, fromRecord, toRecord } from "./episodes.ts";
import { RecordWriter, readRecords } from "./records.ts";
import { EventWriter } from "./tensorboard.ts";
import type { Checkpoint, Progress, SampleRecord, TrainingRun } from "./training-run.ts";

export interface MetricsRow {
  step: number;
  /** Seconds since 1970. */
  time: number;
  values: Record<string, number | null>;
}

export interface RunOptions {
  signal: AbortSignal;
  progress: Progress;
  /** What is written to run.json: the resolved recipe and versions. */
  description: Record<string, unknown>;
  /** Seconds between checkpoints; 0 saves after every update. Default 600. */
  checkpointSeconds?: number;
  /** Checkpoints kept. Default 2. */
  keepCheckpoints?: number;
  /** Training samples recorded an update. Default 4. */
  samplesPerUpdate?: number;
}

interface SavedState {
  state: Record<string, unknown>;
  files: { metrics: number; trajectories: number; samples: number; events: number; eventsName: string };
}

export class RunDirectory implements TrainingRun {
  readonly path: string;
  readonly signal: AbortSignal;
  readonly progress: Progress;
  readonly samplesPerUpdate: number;
  readonly #options: RunOptions;
  readonly #saved: SavedState | undefined;
  readonly #model: LanguageModel | undefined;
  readonly #metrics: RecordWriter;
  readonly #trajectories: RecordWriter;
  readonly #samples: RecordWriter;
  readonly #events: EventWriter;
  readonly #eventsName: string;
  #lastCheckpoint = performance.now();

  /** Starts a run in a directory that is new or empty. Throws ERR_RUN. */
  static create(path: string, options: RunOptions): RunDirectory {
    if (existsSync(path) && readdirSync(path).length > 0) {
      throw new NlacError(
        "ERR_RUN",
        `${path} is not empty. Choose another directory, or continue with --resume.`,
      );
    }
    mkdirSync(join(path, "checkpoints"), { recursive: true });
    lock(path);
    writeDurably(join(path, "run.json"), `${JSON.stringify(options.description, withoutKeys, 2)}\n`);
    return new RunDirectory(path, options, undefined, undefined);
  }

  /** Continues the run in `path` from its newest checkpoint; `model` was resumed from `learnerDirectory(path)`. */
  static resume(path: string, model: LanguageModel, options: RunOptions): RunDirectory {
    const directory = newestCheckpoint(path);
    lock(path);
    const saved = JSON.parse(readFileSync(join(directory, "state.json"), "utf8")) as SavedState;
    return new RunDirectory(path, options, saved, model);
  }

  private constructor(
    path: string,
    options: RunOptions,
    saved: SavedState | undefined,
    model: LanguageModel | undefined,
  ) {
    this.path = path;
    this.signal = options.signal;
    this.progress = options.progress;
    this.samplesPerUpdate = options.samplesPerUpdate ?? 4;
    this.#options = options;
    this.#saved = saved;
    this.#model = model;
    this.#metrics = new RecordWriter(join(path, "metrics.jsonl"), saved?.files.metrics);
    this.#trajectories = new RecordWriter(join(path, "trajectories.jsonl"), saved?.files.trajectories);
    this.#samples = new RecordWriter(join(path, "samples.jsonl"), saved?.files.samples);
    this.#eventsName = saved?.files.eventsName ?? `events.out.tfevents.${Math.floor(Date.now() / 1000)}.nlac`;
    this.#events = new EventWriter(join(path, this.#eventsName), saved?.files.events);
  }

  async restore(): Promise<
    { state: Record<string, unknown>; trajectories: Trajectory[]; replay: string } | undefined
  > {
    if (this.#saved === undefined) return undefined;
    const records = readRecords<EpisodeRecord>(join(this.path, "trajectories.jsonl"));
    return {
      state: this.#saved.state,
      trajectories: records.map((record) => fromRecord(record, this.#model!)),
      replay: newestCheckpoint(this.path),
    };
  }

  metrics(step: number, values: Record<string, number>): void {
    // JSON has no NaN; what could not be measured in this row is left out of it.
    const finite = Object.fromEntries(Object.entries(values).filter(([, value]) => Number.isFinite(value)));
    this.#metrics.append({ step, time: Date.now() / 1000, values: finite } satisfies MetricsRow);
    this.#events.scalars(step, finite);
    if ("rollout/success" in finite) this.progress.show({ success: finite["rollout/success"]! });
  }

  trajectory(trajectory: Trajectory): void {
    this.#trajectories.append(toRecord(trajectory));
  }

  sample(record: SampleRecord): void {
    this.#samples.append(record);
  }

  async checkpoint({ state, model, replay }: Checkpoint, force: boolean): Promise<void> {
    const interval = (this.#options.checkpointSeconds ?? 600) * 1000;
    if (!force && performance.now() - this.#lastCheckpoint < interval) return;
    const root = join(this.path, "checkpoints");
    const numbers = readdirSync(root).flatMap((name) => (/^\d+$/.test(name) ? [Number(name)] : []));
    const name = String(Math.max(-1, ...numbers) + 1).padStart(6, "0");
    const building = join(root, `.${name}`);
    rmSync(building, { recursive: true, force: true });
    mkdirSync(join(building, "learner"), { recursive: true });
    await model.save(join(building, "learner"));
    replay.save(building);
    const saved: SavedState = {
      state,
      files: {
        metrics: this.#metrics.sync(),
        trajectories: this.#trajectories.sync(),
        samples: this.#samples.sync(),
        events: this.#events.sync(),
        eventsName: this.#eventsName,
      },
    };
    writeDurably(join(building, "state.json"), JSON.stringify(saved));
    for (const file of readdirSync(building)) if (file !== "learner") syncPath(join(building, file));
    syncPath(building);
    renameSync(building, join(root, name));
    syncPath(root);
    writeDurably(join(this.path, "latest"), name);
    const keep = this.#options.keepCheckpoints ?? 2;
    for (const old of numbers.sort((a, b) => b - a).slice(keep - 1)) {
      rmSync(join(root, String(old).padStart(6, "0")), { recursive: true, force: true });
    }
    this.#lastCheckpoint = performance.now();
  }

  close(): void {
    this.#metrics.close();
    this.#trajectories.close();
    this.#samples.close();
    this.#events.close();
    rmSync(join(this.path, "lock"), { force: true });
  }
}

/** The newest complete checkpoint of a run. Throws ERR_CHECKPOINT when there is none. */
export function newestCheckpoint(path: string): string {
  if (!existsSync(join(path, "run.json"))) throw new NlacError("ERR_RUN", `${path} is not a run directory.`);
  if (!existsSync(join(path, "latest"))) {
    throw new NlacError("ERR_CHECKPOINT", `${path} has no checkpoint yet; start it anew.`);
  }
  const directory = join(path, "checkpoints", readFileSync(join(path, "latest"), "utf8").trim());
  if (!existsSync(join(directory, "state.json"))) {
    throw new NlacError(
      "ERR_CHECKPOINT",
      `${directory} is named by ${join(path, "latest")} but is not complete.`,
    );
  }
  return directory;
}

/** Where `Learner.resume` finds a run's model. Take the lock first when training is to go on from it. */
export function learnerDirectory(path: string): string {
  return join(newestCheckpoint(path), "learner");
}

/** What `nlac train` wrote to run.json. */
export function readDescription(path: string): Record<string, unknown> {
  if (!existsSync(join(path, "run.json"))) throw new NlacError("ERR_RUN", `${path} is not a run directory.`);
  return JSON.parse(readFileSync(join(path, "run.json"), "utf8")) as Record<string, unknown>;
}

/**
 * One process a run; this one may ask again. A lock whose process is gone (a crash, a kill) is taken over.
 * @throws NlacError ERR_RUN when another process holds it
 */
export function lock(path: string): void {
  const file = join(path, "lock");
  try {
    writeFileSync(file, String(process.pid), { flag: "wx" });
    return;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  }
  const owner = Number(readFileSync(file, "utf8"));
  if (owner > 0 && owner !== process.pid && isAlive(owner)) {
    throw new NlacError(
      "ERR_RUN",
      `${path} is in use by process ${owner} (if that is not a training, delete ${file}).`,
    );
  }
  writeFileSync(file, String(process.pid));
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

/** A service's key is for this process, not for a file that is shown around; it is read from the environment again. */
function withoutKeys(key: string, value: unknown): unknown {
  return key === "apiKey" ? undefined : value;
}

/** Beside, synced, renamed. */
function writeDurably(path: string, text: string): void {
  const beside = `${path}.new`;
  writeFileSync(beside, text);
  syncPath(beside);
  renameSync(beside, path);
}

function syncPath(path: string): void {
  const fd = openSync(path, "r");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}
