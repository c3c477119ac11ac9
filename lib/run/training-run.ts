/**
 * The interface between an algorithm and its run: metrics, samples, checkpoints, and the stop
 * signal. `memoryRun` keeps everything in memory; run/directory.ts writes to disk.
 */

import { z } from "zod";
import { isAborted, isBudgetSpent, NlacError } from "../base/errors.ts";
import { firstIssue } from "../base/validation.ts";
import { type Progress, silentProgress } from "../display/progress.ts";
import type { Stream, Trajectory } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import type { DrawsRecord, ProbeRecord, SampleRecord } from "./samples.ts";

/** What a checkpoint contains. */
export interface Checkpoint {
  /** The algorithm's counters, as plain JSON. */
  state: Record<string, unknown>;
  /** Steps of the warm-up, over all models, if it has not ended: the algorithm has not begun. */
  warmup?: number;
  model: LanguageModel;
  /** For methods with a reward model beside the policy. */
  rewardModel?: LanguageModel;
  /** For methods that sample by priority. Past episodes are restored from their records. */
  replay?: { save(directory: string): void };
}

const whole = z.int().min(0);

/** A number in a checkpoint's state. JSON stores non-finite numbers as null: they become NaN. */
export const savedNumber = z
  .custom<number>((value) => typeof value === "number")
  .or(z.null().transform(() => Number.NaN));

/** Progress of a training that alternates between collecting and updating; part of a checkpoint. */
export const countersSchema = z.strictObject({
  iteration: whole,
  /** Whether the iteration's episodes have been played. */
  collected: z.boolean(),
  /** Updates done in this iteration. */
  updatesDone: whole,
  /** Here and below: totals of the run. */
  updates: whole,
  episodes: whole,
  environmentSteps: whole,
  /** Environment steps before this iteration. */
  stepsBefore: whole,
  skippedInARow: whole,
  /** Number of finished iterations at the last evaluation. */
  evaluated: whole.optional(),
});

export type Counters = z.infer<typeof countersSchema>;

/**
 * A checkpoint's state, checked against the algorithm's schema.
 * @throws NlacError ERR_CHECKPOINT that names a bad field, for example in another algorithm's state
 */
export function parseState<Schema extends z.ZodType>(
  schema: Schema,
  state: Record<string, unknown>,
): z.output<Schema> {
  const parsed = schema.safeParse(state);
  if (parsed.success) return parsed.data;
  throw new NlacError(
    "ERR_CHECKPOINT",
    `The checkpoint's state does not belong to this algorithm: ${firstIssue(parsed.error)}.`,
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

/** Ends an iteration: the next step is to collect episodes. */
export function endIteration(counters: Counters): void {
  counters.iteration++;
  counters.collected = false;
  counters.updatesDone = 0;
  counters.stepsBefore = counters.environmentSteps;
}

/** `iterations` of a training without an end, such as a served one. */
export const endless = Number.MAX_SAFE_INTEGER;

/** When a training ends. The methods' configurations explain the fields. */
export interface Length {
  iterations: number;
  environmentSteps: number;
}

/** Whether training is over: the maximum of iterations or of environment steps was reached. */
export function isOver(
  { iteration, collected, environmentSteps }: Pick<Counters, "iteration" | "collected" | "environmentSteps">,
  length: Length,
): boolean {
  if (iteration >= length.iterations) return true;
  return !collected && length.environmentSteps > 0 && environmentSteps >= length.environmentSteps;
}

/**
 * The share of a training that is done, 0 to 1; 0 for one without an end.
 * @param ofIteration the share of this iteration's updates that are done, 0 to 1
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
  if (length.iterations === 0) return 1;
  const iterations = length.iterations === endless ? 0 : (iteration + ofIteration) / length.iterations;
  if (length.environmentSteps === 0) return iterations;
  // Steps count in proportion to the updates done; those of the last iteration beyond the limit do not.
  const steps = Math.min(environmentSteps, length.environmentSteps) - stepsBefore;
  return Math.max(iterations, (stepsBefore + ofIteration * steps) / length.environmentSteps);
}

/**
 * Handles an `error` that interrupts training. If it is the run's stop signal or a spent service
 * budget, rolls back to the last safe point and saves a checkpoint.
 *
 * @throws `error`, unless it is the run's stop signal
 */
export async function rollBack(
  model: LanguageModel,
  run: TrainingRun,
  error: unknown,
  save: () => Promise<void>,
): Promise<void> {
  const stopped = isAborted(error) && run.signal.aborted;
  if (!stopped && !isBudgetSpent(error)) throw error;
  await model.discardGradients();
  await model.dropCaches();
  await save();
  if (!stopped) throw error;
}

/** The result of a training. */
export interface TrainingResult {
  updates: number;
  episodes: number;
  environmentSteps: number;
  /** True if the run was stopped before its end; a checkpoint was saved. */
  stopped: boolean;
}

export function trainingResult(
  { updates, episodes, environmentSteps }: Counters,
  stopped: boolean,
): TrainingResult {
  return { updates, episodes, environmentSteps, stopped };
}

/** Actions to imitate that arrived during a run. */
export interface ArrivedDemonstrations {
  examples: readonly { prompt: readonly number[]; response: readonly number[] }[];
  /** To be called after the step on them. Returns how many demonstrations are still to be imitated. */
  imitated(): number;
}

/** What a method reports to, and what tells it to stop. */
export interface TrainingRun {
  /** Fires to stop the run: the algorithm rolls back to a safe point, saves and returns. */
  readonly signal: AbortSignal;
  readonly progress: Progress;
  /** Rows of metrics so far, with those before a resume. */
  readonly rowCount?: number;
  /** Number of samples to record per update. */
  readonly samplesPerUpdate: number;
  /**
   * Updates between samples in detail: the critic on the stored action, log probabilities under θ,
   * and the most probable tokens of the highest L1. 0 records none.
   */
  readonly detailEvery: number;
  /** Maximum bytes of an update's figures per token; samples beyond have none. */
  readonly tokenBytes: number;
  /** Number of fixed transitions to explain at every evaluation. */
  readonly probes: number;
  /**
   * Where the episodes come from, if they are not played: resolves with episodes from number
   * `first` on, once there are `count`. Off-policy methods may get more. Throws ERR_ABORTED when
   * the signal fires.
   */
  readonly nextEpisodes?: (first: number, count: number) => Promise<Trajectory[]>;
  /**
   * Where demonstrations come from, if they arrive during the run: resolves with up to `most`
   * actions to imitate, once there are any. Throws ERR_ABORTED when the signal fires.
   */
  readonly nextDemonstrations?: (most: number) => Promise<ArrivedDemonstrations>;
  /**
   * The last checkpoint: its state, the episodes before it (iterable once, one in memory at a
   * time), and the replay buffer's directory. Undefined if the algorithm has not begun.
   */
  restore(): Promise<
    { state: Record<string, unknown>; trajectories: Stream<Trajectory>; replay: string } | undefined
  >;
  /** One row of metrics; `step` counts updates. */
  metrics(step: number, values: Record<string, number>): void;
  trajectory(trajectory: Trajectory): void;
  /** The episodes of an evaluation of `split` after `update` updates. */
  evaluation(trajectories: readonly Trajectory[], update: number, split: "train" | "test"): void;
  sample(record: SampleRecord): void;
  /** The transitions that an update drew. */
  draws(record: DrawsRecord): void;
  probe(record: ProbeRecord): void;
  /** Saves a checkpoint if the interval has passed, or if `force`. */
  checkpoint(checkpoint: Checkpoint, force: boolean): Promise<void>;
}

/** A run in memory, with all that a method reported to it. */
export interface MemoryRun extends TrainingRun {
  readonly rows: { step: number; values: Record<string, number> }[];
  readonly trajectories: Trajectory[];
  readonly evaluations: { trajectories: readonly Trajectory[]; update: number }[];
  readonly samples: SampleRecord[];
  readonly drawn: DrawsRecord[];
  readonly probed: ProbeRecord[];
  readonly checkpoints: Record<string, unknown>[];
}

/** A run that keeps everything in memory. */
export function memoryRun(
  options: {
    signal?: AbortSignal;
    progress?: Progress;
    /** Default 0: none. */
    detailEvery?: number;
    probes?: number;
  } = {},
): MemoryRun {
  const run: MemoryRun = {
    signal: options.signal ?? new AbortController().signal,
    progress: options.progress ?? silentProgress,
    samplesPerUpdate: 4,
    detailEvery: options.detailEvery ?? 0,
    tokenBytes: 2 ** 16,
    probes: options.probes ?? 0,
    rows: [],
    trajectories: [],
    evaluations: [],
    samples: [],
    drawn: [],
    probed: [],
    checkpoints: [],
    restore: async () => undefined,
    metrics: (step, values) => void run.rows.push({ step, values }),
    trajectory: (trajectory) => void run.trajectories.push(trajectory),
    evaluation: (trajectories, update) => void run.evaluations.push({ trajectories, update }),
    sample: (record) => void run.samples.push(record),
    draws: (record) => void run.drawn.push(record),
    probe: (record) => void run.probed.push(record),
    checkpoint: async ({ state }, force) => {
      if (force) run.checkpoints.push(structuredClone(state));
    },
  };
  return run;
}
