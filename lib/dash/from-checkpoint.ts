/**
 * Figures that a run did not record, computed on request from its newest checkpoint. They are those
 * of the checkpoint's weights, not of the weights at the sample's update.
 */

import { join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { openEnvironment } from "../environments/registry.ts";
import { fromRecord } from "../episodes/records.ts";
import { transitionsOf } from "../episodes/trajectory.ts";
import { readJson } from "../files/disk.ts";
import { Learner } from "../learner/learner.ts";
import { baseOf, recipeOf } from "../recipe/run-recipe.ts";
import { newestCheckpoint, savedState } from "../run/checkpoints.ts";
import { explainRecordedTarget } from "../training/recorded-target.ts";
import type { DashRun } from "./run.ts";
import type { CheckpointView } from "./types.ts";
import { tokenView } from "./views.ts";

/** Holds at most one model, and computes one request at a time. */
export class FromCheckpoint {
  #open: { path: string; learner: Learner } | undefined;
  #latest: Promise<unknown> = Promise.resolve();

  /**
   * The most probable tokens of both models at each token of the target of sample `number`. Throws
   * ERR_RUN if they cannot be computed, ERR_CHECKPOINT, and what loading the model throws.
   */
  target(run: DashRun, number: number): Promise<CheckpointView> {
    return this.#next(() => this.#target(run, number));
  }

  async dispose(): Promise<void> {
    await this.#next(async () => {
      await this.#open?.learner.dispose();
      this.#open = undefined;
    });
  }

  #next<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#latest.then(work);
    this.#latest = result.catch(() => {});
    return result;
  }

  async #target(run: DashRun, number: number): Promise<CheckpointView> {
    const recipe = recipeOf(run.path);
    const sample = await run.sample(number);
    const episode = await run.episode(sample.trajectory);
    if (recipe.algorithm !== "nlac" || episode === undefined || sample.turn === undefined)
      throw new NlacError("ERR_RUN", "Only samples of NLAC whose episode is recorded can be computed again.");
    const path = newestCheckpoint(run.path);
    const { state } = readJson(join(path, "state.json"), savedState, "ERR_CHECKPOINT");
    const learner = await this.#learner(path, recipe);
    const environment = await openEnvironment(recipe.environment.name, recipe.environment.options);
    try {
      const transition = transitionsOf(fromRecord(episode, learner))[sample.turn];
      const record =
        transition && (await explainRecordedTarget(learner, environment, recipe.config, transition, sample));
      if (record === undefined)
        throw new NlacError("ERR_RUN", "The target of this sample, or its prompt, was not recorded.");
      return { updates: Number(state.updates), target: tokenView(record) };
    } finally {
      await environment.close();
    }
  }

  /** On the CPU and with one thread, because a training may use the GPU and the other cores. */
  async #learner(path: string, recipe: ReturnType<typeof recipeOf>): Promise<Learner> {
    if (this.#open?.path === path) return this.#open.learner;
    await this.#open?.learner.dispose();
    this.#open = undefined;
    const options = { ...recipe.learner, int8Generation: false, device: "cpu" as const, threads: 1 };
    const learner = await Learner.resume(join(path, "learner"), { ...options, base: baseOf(recipe) });
    this.#open = { path, learner };
    return learner;
  }
}
