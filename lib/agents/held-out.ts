/**
 * Measures success on held-out episodes (the split "test"), which are never trained on. Each time a
 * fixed number of them is complete, it gives a row of metrics.
 */

import { z } from "zod";
import type { EpisodeRecord } from "../episodes/records.ts";
import { isFaulty, succeeded } from "../episodes/trajectory.ts";
import { mean } from "../statistics/mean.ts";
import { isOfStart } from "./guard-rails.ts";

export const heldOutConfig = z.strictObject({
  /** Held-out episodes per measurement. Default 32. */
  episodes: z.int().min(1).default(32),
});

export type HeldOutConfig = z.infer<typeof heldOutConfig>;

export class HeldOut {
  readonly #config: HeldOutConfig;
  #episodes: EpisodeRecord[] = [];
  /** Measurements that were not written yet. */
  #measured: Record<string, number>[] = [];
  /** Number of the start whose weights generated `#episodes`. */
  #start = 0;

  constructor(config: HeldOutConfig) {
    this.#config = config;
  }

  /** Episodes of the measurement in progress. */
  get waiting(): number {
    return this.#episodes.length;
  }

  /**
   * Adds an episode. Those with a turn of another start of the server, or of a version that the
   * client requested, are left out. Returns whether a measurement is complete.
   *
   * @param start number of the server's current start
   */
  add(record: EpisodeRecord, start: number): boolean {
    if (start !== this.#start) this.#episodes = [];
    this.#start = start;
    if (isFaulty(record) || !isOfStart(record, start)) return false;
    this.#episodes.push(record);
    if (this.#episodes.length < this.#config.episodes) return false;
    const episodes = this.#episodes;
    this.#episodes = [];
    this.#measured.push({
      "eval/success": mean(episodes.map((episode) => (succeeded(episode) ? 1 : 0))),
      "eval/reward": mean(episodes.map(({ reward }) => reward)),
      "eval/turns": mean(episodes.map(({ turns }) => turns.length)),
      "eval/episodes": episodes.length,
    });
    return true;
  }

  /** The measurements since the last call, as rows of metrics. */
  take(): Record<string, number>[] {
    return this.#measured.splice(0);
  }
}
