/**
 * What a training tells the world, and what it is told: the seam between an algorithm and a run directory.
 * `memoryRun` serves library use and tests; run/directory.ts writes everything to disk.
 */

import type { LanguageModel } from "../model.ts";
import type { ReplayBuffer } from "../replay/buffer.ts";
import type { Trajectory } from "../rollout/trajectory.ts";

/** One training sample with all of its texts, for the record and for `nlac view`. */
export interface SampleRecord {
  update: number;
  trajectory: number;
  turn: number;
  /** Every text of the sample by its role: state, action, observation, future, target, attempt, critique, refinement. */
  texts: Record<string, string>;
  /** What is known of it: L1, L2, reward, parse failures. */
  facts: Record<string, number | string | boolean>;
}

export interface Checkpoint {
  /** The algorithm's own counters: plain JSON. */
  state: Record<string, unknown>;
  model: LanguageModel;
  replay: ReplayBuffer;
}

export interface Progress {
  /** Begins a phase of `total` steps. */
  phase(name: string, total: number): void;
  /** `done` of the phase's steps are over; `tokens` have been read or written since the last call. */
  advance(done: number, tokens?: number): void;
  /** Figures worth showing, replacing earlier ones of the same name. */
  show(figures: Record<string, number>): void;
  /** How much of the whole training is over, 0 to 1, for the time that remains. */
  overall(fraction: number): void;
}

export interface TrainingRun {
  /** Fires when the run is to stop: the algorithm rolls back to its last boundary, checkpoints and returns. */
  readonly signal: AbortSignal;
  readonly progress: Progress;
  /** How many samples of an update are recorded with their texts. */
  readonly samplesPerUpdate: number;
  /**
   * The last checkpoint: its state, the episodes up to it (to be gone through once, one in memory at a time), the
   * replay buffer's directory. Undefined in a fresh run.
   */
  restore(): Promise<
    { state: Record<string, unknown>; trajectories: Iterable<Trajectory>; replay: string } | undefined
  >;
  /** One row of metrics; `step` counts updates. */
  metrics(step: number, values: Record<string, number>): void;
  trajectory(trajectory: Trajectory): void;
  sample(record: SampleRecord): void;
  /** Saves unless it is too early since the last save; `force` always saves. */
  checkpoint(checkpoint: Checkpoint, force: boolean): Promise<void>;
}

const silentProgress: Progress = { phase() {}, advance() {}, show() {}, overall() {} };

/** Keeps everything in memory. */
export interface MemoryRun extends TrainingRun {
  readonly rows: { step: number; values: Record<string, number> }[];
  readonly trajectories: Trajectory[];
  readonly samples: SampleRecord[];
  readonly checkpoints: Record<string, unknown>[];
}

export function memoryRun(options: { signal?: AbortSignal; progress?: Progress } = {}): MemoryRun {
  const run: MemoryRun = {
    signal: options.signal ?? new AbortController().signal,
    progress: options.progress ?? silentProgress,
    samplesPerUpdate: 4,
    rows: [],
    trajectories: [],
    samples: [],
    checkpoints: [],
    restore: async () => undefined,
    metrics: (step, values) => void run.rows.push({ step, values }),
    trajectory: (trajectory) => void run.trajectories.push(trajectory),
    sample: (record) => void run.samples.push(record),
    checkpoint: async ({ state }, force) => {
      if (force) run.checkpoints.push(structuredClone(state));
    },
  };
  return run;
}
