/**
 * The run directory: everything that a training produces and needs to resume.
 *
 *   run.json             the resolved recipe, the start time, and the builds that trained it
 *   metrics.jsonl        one record per row: { step, time, values }
 *   events.out.tfevents… the same for TensorBoard
 *   trajectories.jsonl   one record per episode: every text, token id and log probability
 *   samples.jsonl        some complete training samples of each update
 *   checkpoints/N/       state.json, learner/ (θ, θ̄, moments, tokenizer); sampler.bin and
 *                        replay.json if there is a replay buffer
 *   latest               the name of the newest complete checkpoint
 *   lock                 the id of the process that writes here
 *
 * A checkpoint is written under a temporary name, synced and renamed; `latest` changes last. It
 * stores the length of every record file, so that a resumed run truncates and repeats the rest.
 */

import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { z } from "zod";
import { fromFileSystem, NlacError } from "../base/errors.ts";
import { isAlive } from "../base/processes.ts";
import type { Progress } from "../display/progress.ts";
import { readEpisodes, toRecord } from "../episodes/records.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import { onDisk, readJson, requireEmpty, syncDirectory } from "../files/disk.ts";
import { RecordWriter } from "../files/records.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { EventWriter } from "./tensorboard.ts";
import type { Checkpoint, SampleRecord, TrainingRun } from "./training-run.ts";

export interface MetricsRow {
  step: number;
  /** Seconds since 1970. */
  time: number;
  values: Record<string, number | null>;
}

export interface RunOptions {
  signal: AbortSignal;
  progress: Progress;
  /** Contents of run.json: the resolved recipe and versions. */
  description: Record<string, unknown>;
  /** Seconds between checkpoints; 0 saves after every update. Default 600. */
  checkpointSeconds?: number;
  /** Number of checkpoints to keep. Default 2. */
  keepCheckpoints?: number;
  /** Training samples to record per update. Default 4. */
  samplesPerUpdate?: number;
}

const bytes = z.int().min(0);

/** Contents of state.json: the algorithm's counters, and the length of every record file. */
const savedState = z.object({
  state: z.record(z.string(), z.unknown()),
  files: z.object({
    metrics: bytes,
    trajectories: bytes,
    samples: bytes,
    events: bytes,
    eventsName: z.string(),
  }),
});

type SavedState = z.infer<typeof savedState>;

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

  /** Starts a run in a new or empty directory. Throws ERR_RUN, ERR_IO. */
  static create(path: string, options: RunOptions): RunDirectory {
    requireNewRun(path);
    makeDurably(join(path, "checkpoints"));
    lock(path);
    writeAtomically(join(path, "run.json"), `${JSON.stringify(options.description, withoutKeys, 2)}\n`);
    return new RunDirectory(path, options, undefined, undefined);
  }

  /**
   * Continues the run in `path` from its newest checkpoint. `model` was resumed from
   * `learnerDirectory(path)`.
   * @throws NlacError ERR_RUN, ERR_CHECKPOINT, ERR_IO
   */
  static resume(path: string, model: LanguageModel, options: RunOptions): RunDirectory {
    const directory = newestCheckpoint(path);
    lock(path);
    const saved = readJson(join(directory, "state.json"), savedState, "ERR_CHECKPOINT");
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
    { state: Record<string, unknown>; trajectories: Iterable<Trajectory>; replay: string } | undefined
  > {
    if (this.#saved === undefined) return undefined;
    return {
      state: this.#saved.state,
      trajectories: readEpisodes(join(this.path, "trajectories.jsonl"), this.#model!),
      replay: newestCheckpoint(this.path),
    };
  }

  metrics(step: number, values: Record<string, number>): void {
    // JSON has no NaN: leave out what could not be measured.
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
    const numbers = checkpointNumbers(root);
    const name = String(Math.max(-1, ...numbers) + 1).padStart(6, "0");
    const building = join(root, `.${name}`);
    onDisk(building, () => {
      rmSync(building, { recursive: true, force: true });
      mkdirSync(join(building, "learner"), { recursive: true });
    });
    await model.save(join(building, "learner"));
    replay?.save(building);
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
    writeAtomically(join(building, "state.json"), JSON.stringify(saved));
    onDisk(building, () => renameSync(building, join(root, name)));
    syncDirectory(root);
    // `latest` must be on disk before the checkpoint that it named before is removed.
    writeAtomically(join(this.path, "latest"), name);
    const keep = this.#options.keepCheckpoints ?? 2;
    for (const old of numbers.sort((a, b) => b - a).slice(keep - 1)) {
      const path = join(root, String(old).padStart(6, "0"));
      onDisk(path, () => rmSync(path, { recursive: true, force: true }));
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

/** Throws ERR_RUN unless `path` is new or empty; ERR_IO. */
export function requireNewRun(path: string): void {
  requireEmpty(path, "ERR_RUN", "Choose another directory, or continue with --resume.");
}

function requireRun(path: string): void {
  if (existsSync(join(path, "run.json"))) return;
  throw new NlacError("ERR_RUN", `${path} is not a run directory: it has no run.json.`);
}

/** The newest complete checkpoint of a run. Throws ERR_RUN, ERR_CHECKPOINT. */
export function newestCheckpoint(path: string): string {
  requireRun(path);
  if (!existsSync(join(path, "latest"))) {
    throw new NlacError("ERR_CHECKPOINT", `${path} has no checkpoint yet: delete it and start again.`);
  }
  const latest = join(path, "latest");
  const directory = join(path, "checkpoints", onDisk(latest, () => readFileSync(latest, "utf8")).trim());
  if (!existsSync(join(directory, "state.json"))) {
    throw new NlacError("ERR_CHECKPOINT", `${latest} names ${directory}, which is not complete.`);
  }
  return directory;
}

/** The directory for `Learner.resume`. To continue training, take the lock first. */
export function learnerDirectory(path: string): string {
  return join(newestCheckpoint(path), "learner");
}

/** The contents of run.json. Throws ERR_RUN. */
export function readDescription(path: string): Record<string, unknown> {
  requireRun(path);
  return readJson(join(path, "run.json"), z.record(z.string(), z.unknown()), "ERR_RUN");
}

/** Appends `build` to the builds in run.json unless it is there. Throws ERR_RUN, ERR_IO. */
export function noteBuild(path: string, build: object): void {
  const description = readDescription(path);
  const builds: unknown[] = Array.isArray(description.builds) ? description.builds : [null];
  if (builds.some((known) => isDeepStrictEqual(known, build))) return;
  const noted = { ...description, builds: [...builds, build] };
  writeAtomically(join(path, "run.json"), `${JSON.stringify(noted, null, 2)}\n`);
}

/**
 * Locks a run for this process, which may call it again. The lock of a dead process is taken over.
 * @throws NlacError ERR_RUN when another process holds it, ERR_IO
 */
export function lock(path: string): void {
  const file = join(path, "lock");
  try {
    writeFileSync(file, String(process.pid), { flag: "wx" });
    return;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw fromFileSystem(error);
  }
  const owner = Number(onDisk(file, () => readFileSync(file, "utf8")));
  if (owner > 0 && owner !== process.pid && isAlive(owner)) {
    throw new NlacError(
      "ERR_RUN",
      `${path} is in use by process ${owner} (if that is not nlac, delete ${file}).`,
    );
  }
  onDisk(file, () => writeFileSync(file, String(process.pid)));
}

/** A JSON replacer that drops API keys, because run files may be shared. */
export function withoutKeys(key: string, value: unknown): unknown {
  return key === "apiKey" ? undefined : value;
}

/** Creates a directory and its missing parents, and makes their names durable. Throws ERR_IO. */
function makeDurably(path: string): void {
  const first = onDisk(path, () => mkdirSync(path, { recursive: true }));
  if (first === undefined) return;
  for (let made = path; made.length >= first.length; made = dirname(made)) syncDirectory(dirname(made));
}

function checkpointNumbers(root: string): number[] {
  const names = onDisk(root, () => readdirSync(root));
  return names.flatMap((name) => (/^\d+$/.test(name) ? [Number(name)] : []));
}
