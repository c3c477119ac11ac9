/**
 * What a training tells the world, and what it is told: the seam between an algorithm and a run directory.
 * `memoryRun` serves library use and tests; run/directory.ts writes everything to disk.
 */

import { z } from "zod";
import { isBudgetSpent, NlacError } from "../base/errors.ts";
import { type Progress, silentProgress } from "../display/progress.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import type { ReplayBuffer } from "../replay/buffer.ts";

/** One training sample with all of its texts, for the record and for `nlac view`. */
export interface SampleRecord {
  update: number;
  trajectory: number;
  /** Absent where the sample is a whole episode. */
  turn?: number;
  /** Every text of the sample by its role: state, action, observation, future, target, attempt, critique, refinement. */
  texts: Record<string, string>;
  /** What is known of it: L1, L2, reward, parse failures. */
  facts: Record<string, number | string | boolean>;
}

export interface Checkpoint {
  /** The algorithm's own counters: plain JSON. */
  state: Record<string, unknown>;
  model: LanguageModel;
  /** Of methods that sample by priority; what else is to be known of past episodes is in their records. */
  replay?: ReplayBuffer;
}

const whole = z.int().min(0);

/** A number of a checkpoint's state. JSON has null for one that is not finite; it comes back as NaN. */
export const savedNumber = z
  .custom<number>((value) => typeof value === "number")
  .or(z.null().transform(() => Number.NaN));

/** How far a training in rounds of collecting and updating has come; a checkpoint holds it. */
export const countersSchema = z.object({
  iteration: whole,
  /** Whether the iteration's episodes have been played. */
  collected: z.boolean(),
  /** Updates of the iteration. */
  updatesDone: whole,
  /** Of the run, as all that follow. */
  updates: whole,
  episodes: whole,
  environmentSteps: whole,
  /** Of them, those before the iteration. */
  stepsBefore: whole,
  skippedInARow: whole,
  /** Iterations that were over when the policy was last measured. */
  evaluated: whole.optional(),
});

export type Counters = z.infer<typeof countersSchema>;

/**
 * The state that a checkpoint holds, as the algorithm knows it.
 * @throws NlacError ERR_CHECKPOINT that names what does not fit: a state of another algorithm, say
 */
export function parseState<Schema extends z.ZodType>(
  schema: Schema,
  state: Record<string, unknown>,
): z.output<Schema> {
  const parsed = schema.safeParse(state);
  if (parsed.success) return parsed.data;
  const { path, message } = parsed.error.issues[0]!;
  throw new NlacError(
    "ERR_CHECKPOINT",
    `The checkpoint's state is not one of this algorithm: ${[...path, message].join(": ")}.`,
  );
}

export function newCounters(): Counters {
  return {
    iteration: 0,
    collected: false,
    updatesDone: 0,
    updates: 0,
    episodes: 0,
    environmentSteps: 0,
    stepsBefore: 0,
    skippedInARow: 0,
  };
}

/** Ends an iteration: the next one's episodes are to be played. */
export function endIteration(counters: Counters): void {
  counters.iteration++;
  counters.collected = false;
  counters.updatesDone = 0;
  counters.stepsBefore = counters.environmentSteps;
}

/** When a training ends; every field is explained in the methods' configurations. */
export interface Length {
  iterations: number;
  environmentSteps: number;
}

/** Whether the last iteration is over: there are no more, or the environment steps were reached in it. */
export function isOver(
  { iteration, collected, environmentSteps }: Pick<Counters, "iteration" | "collected" | "environmentSteps">,
  length: Length,
): boolean {
  if (iteration >= length.iterations) return true;
  return !collected && length.environmentSteps > 0 && environmentSteps >= length.environmentSteps;
}

/**
 * How much of a training is over, 0 to 1.
 * @param ofIteration how much of the iteration's updates, 0 to 1
 */
export function shareOver(
  {
    iteration,
    environmentSteps,
    stepsBefore,
  }: Pick<Counters, "iteration" | "environmentSteps" | "stepsBefore">,
  length: Length,
  ofIteration: number,
): number {
  const iterations = (iteration + ofIteration) / length.iterations;
  if (length.environmentSteps === 0) return iterations;
  // An iteration's steps count as its updates learn from them; the last one may go beyond the bound.
  const steps = stepsBefore + ofIteration * (environmentSteps - stepsBefore);
  return Math.max(iterations, steps / Math.max(length.environmentSteps, environmentSteps));
}

/**
 * Takes a training back to its last boundary after `error` and saves it there, if that is the run's own stop or a service's
 * budget that is spent: neither is a fault of the training.
 *
 * @throws the error, if it is not the run's own stop
 */
export async function rollBack(
  model: LanguageModel,
  run: TrainingRun,
  error: unknown,
  save: () => Promise<void>,
): Promise<void> {
  const stopped = error instanceof NlacError && error.code === "ERR_ABORTED" && run.signal.aborted;
  if (!stopped && !isBudgetSpent(error)) throw error;
  await model.discardGradients();
  await model.dropCaches();
  await save();
  if (!stopped) throw error;
}

/** What a training says at its end. */
export interface TrainingResult {
  updates: number;
  episodes: number;
  environmentSteps: number;
  /** True when the run was told to stop before its end; a checkpoint was saved. */
  stopped: boolean;
}

export function trainingResult(
  { updates, episodes, environmentSteps }: Counters,
  stopped: boolean,
): TrainingResult {
  return { updates, episodes, environmentSteps, stopped };
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
