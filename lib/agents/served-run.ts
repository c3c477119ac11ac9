/**
 * The run of an algorithm whose episodes are served: they come from the recording instead of from
 * play, checkpoints also have the version, and corrections are imitated between updates. For SFT,
 * corrections are the data instead. Metrics and checkpoints are those of the run directory.
 */

import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { NlacError, throwIfAborted } from "../base/errors.ts";
import type { Progress } from "../display/progress.ts";
import { type Trajectory, transitionsOfAll } from "../episodes/trajectory.ts";
import { onDisk, readJson } from "../files/disk.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { ReplayBuffer } from "../replay/buffer.ts";
import type { RunDirectory } from "../run/directory.ts";
import type { DrawsRecord } from "../run/samples.ts";
import type { ArrivedDemonstrations, Checkpoint, TrainingRun } from "../run/training-run.ts";
import type { Reporting } from "../sinks/reporting.ts";
import type { Corrections } from "./corrections.ts";
import type { EpisodeQueue } from "./episode-queue.ts";
import type { GuardRails } from "./guard-rails.ts";
import type { HeldOut } from "./held-out.ts";
import type { SharedLearner } from "./shared-learner.ts";
import { type ServedState, savedServed } from "./versions.ts";

export interface ServedRunOptions {
  directory: RunDirectory;
  recipe: Recipe;
  model: SharedLearner;
  queue: EpisodeQueue;
  corrections: Corrections;
  guard: GuardRails;
  heldOut: HeldOut;
  reporting: Reporting;
  /** How often each correction was imitated. Default: what the checkpoint says. */
  corrected?: ServedState["corrections"];
  /** Saves a checkpoint at the first opportunity. */
  saveFirst: boolean;
  /** Called before episodes are fetched; may fire the run's signal. */
  onBoundary: () => void;
  /** Called after each checkpoint. */
  onCheckpoint: () => void;
  /** Called after each update, and when a saved run was restored. */
  onUpdate: (updates: number) => void;
}

/** Episodes that an iteration takes at most, if so many wait. */
const maxEpisodesPerIteration = 4096;

export class ServedRun implements TrainingRun {
  readonly signal: AbortSignal;
  readonly progress: Progress;
  readonly samplesPerUpdate: number;
  // Served runs record no samples, details or probes.
  readonly detailEvery = 0;
  readonly tokenBytes = 0;
  readonly probes = 0;
  readonly #options: ServedRunOptions;
  #saveFirst: boolean;
  #updates = 0;

  constructor(options: ServedRunOptions) {
    const { signal, progress, samplesPerUpdate } = options.directory;
    this.signal = signal;
    this.progress = progress;
    this.samplesPerUpdate = samplesPerUpdate;
    this.#options = options;
    this.#saveFirst = options.saveFirst;
  }

  nextEpisodes = async (first: number, count: number): Promise<Trajectory[]> => {
    const { queue, recipe, onBoundary } = this.#options;
    onBoundary();
    // Off-policy methods take all waiting episodes, so that training does not fall behind fast
    // clients. GRPO's batches have a fixed size.
    const most = recipe.algorithm === "grpo" ? count : maxEpisodesPerIteration;
    return queue.next(first, [count, most], this.signal, () => {
      this.#recordHeldOut();
      return this.#imitate();
    });
  };

  nextDemonstrations = async (most: number): Promise<ArrivedDemonstrations> => {
    const { queue, corrections, onBoundary } = this.#options;
    for (;;) {
      onBoundary();
      throwIfAborted(this.signal);
      this.#recordHeldOut();
      const examples = corrections.due(most);
      const imitated = () => {
        corrections.count(examples);
        return corrections.waiting;
      };
      if (examples.length > 0) return { examples, imitated };
      // Episodes end the wait too: success may have fallen, or a held-out measurement is complete.
      await queue.change(this.signal);
    }
  };

  async restore() {
    const { directory, queue, recipe } = this.#options;
    const saved = await directory.restore();
    if (saved === undefined) return undefined;
    const parsed = savedServed.safeParse(saved.state);
    if (!parsed.success)
      throw new NlacError("ERR_CHECKPOINT", `${directory.path} was not made by nlac serve --train.`);
    const { training, served } = parsed.data;
    this.#options.corrections.restore(this.#options.corrected ?? served.corrections);
    const episodes = Number(training.episodes);
    this.#updates = Number(training.updates);
    this.#options.onUpdate(this.#updates);
    const replay =
      recipe.algorithm === "nlac"
        ? await this.#matchingReplay(saved.replay, episodes, recipe.config, training)
        : saved.replay;
    return { state: training, trajectories: queue.before(episodes, this.signal), replay };
  }

  metrics(step: number, values: Record<string, number>): void {
    this.#updates = step;
    this.#recordHeldOut();
    this.#record({ ...values, ...this.#shareMetrics() });
    this.#options.onUpdate(step);
  }

  /** The recording has the episode already. */
  trajectory(trajectory: Trajectory): void {
    this.#options.reporting.episode(trajectory);
  }

  /** Served runs play no evaluations: held-out episodes of clients are measured instead. */
  evaluation(): void {}

  /** Texts of clients are not copied into samples. */
  sample(): void {}

  draws(record: DrawsRecord): void {
    this.#options.directory.draws(record);
  }

  probe(): void {}

  async checkpoint({ state, ...checkpoint }: Checkpoint, force: boolean): Promise<void> {
    if (!this.signal.aborted) await this.#imitate();
    const { directory, model, corrections, guard, onCheckpoint } = this.#options;
    // The state of an update in progress, and completions of later ones, may contain texts of
    // episodes that are deleted later, so they are not saved but computed again.
    const { pending: _, scores: __, prepared: ___, ...training } = state;
    const [start, changes] = model.version.split(".").map(Number) as [number, number];
    const served: ServedState = { start, changes, corrections: corrections.counts, quality: guard.quality };
    await directory.checkpoint({ ...checkpoint, state: { training, served } }, force || this.#saveFirst);
    this.#saveFirst = false;
    onCheckpoint();
  }

  /** One step on corrections. Returns whether there were any. */
  async #imitate(): Promise<boolean> {
    const { corrections, model, recipe } = this.#options;
    if (recipe.algorithm === "sft") return false; // the algorithm imitates them
    const metrics = await corrections.imitate(model);
    if (metrics === undefined) return false;
    this.#record(metrics);
    return true;
  }

  /** Writes the measurements on held-out episodes. */
  #recordHeldOut(): void {
    for (const row of this.#options.heldOut.take()) this.#record(row);
  }

  #record(values: Record<string, number>): void {
    this.#options.directory.metrics(this.#updates, values);
    this.#options.reporting.row(this.#updates, values, this.#options.directory.rowCount);
  }

  #shareMetrics(): Record<string, number> {
    const { share } = this.#options.model;
    return {
      "serving/training_share": share.trainingShare,
      ...(share.firstTokenMs === undefined ? {} : { "serving/first_token_ms_p99": share.firstTokenMs }),
    };
  }

  /**
   * The directory of the replay buffer. If episodes were deleted since the checkpoint, the buffer
   * is made anew, with equal priorities, and the draws of the updates in progress are dropped.
   */
  async #matchingReplay(
    directory: string,
    episodes: number,
    config: { replayCapacity: number; priorityExponent: number; importanceExponent: number; seed: number },
    training: Record<string, unknown>,
  ): Promise<string> {
    const { added } = readJson(join(directory, "replay.json"), replayCounts, "ERR_CHECKPOINT");
    const transitions = () => transitionsOfAll(this.#options.queue.before(episodes, this.signal));
    let found = 0;
    for await (const _ of transitions()) found++;
    if (found === added) return directory;
    delete training.drawn;
    delete training.prepared;
    const made = join(this.#options.directory.path, "replay-after-deletion");
    onDisk(made, () => {
      rmSync(made, { recursive: true, force: true });
      mkdirSync(made);
    });
    const replay = new ReplayBuffer({ ...config, capacity: config.replayCapacity });
    try {
      for await (const transition of transitions()) replay.add([transition]);
      replay.save(made);
    } finally {
      replay.dispose();
    }
    return made;
  }
}

const replayCounts = z.looseObject({ added: z.int().min(0) });
