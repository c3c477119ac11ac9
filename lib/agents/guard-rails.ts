/**
 * Guard rails of a served run: metrics of the latest episodes, compared with those of the kept
 * versions. If one has fallen too far, the weights go back to the best version.
 */

import { z } from "zod";
import type { EpisodeRecord } from "../episodes/records.ts";
import { isFaulty, succeeded } from "../episodes/trajectory.ts";
import { mean } from "../statistics/mean.ts";
import type { Version } from "./versions.ts";

export const guardConfig = z.strictObject({
  /**
   * By metric, how far it may fall below its best kept version before the weights go back to that:
   * "success", "reward", "parse", or a metric that clients post. Default: success 0.25, parse 0.25.
   */
  maxFall: z.record(z.string(), z.number().positive()).default({ success: 0.25, parse: 0.25 }),
  /** Latest episodes that are measured; no version is judged by fewer. Default 64. */
  episodes: z.int().min(1).default(64),
});

export type GuardConfig = z.infer<typeof guardConfig>;

interface Measured {
  success: number;
  reward: number;
  /** Share of turns whose action could be parsed. */
  parse: number;
}

export class GuardRails {
  readonly #config: GuardConfig;
  readonly #episodes: Measured[] = [];
  /** Latest values of the metrics that clients post. */
  readonly #posted = new Map<string, number[]>();

  constructor(config: GuardConfig) {
    this.#config = config;
  }

  /**
   * Adds an episode. It is left out if one of its turns was generated before the server's current
   * start (or a rollback), or by a version that the client requested: it then says nothing about
   * the current weights.
   *
   * @param start number of the server's current start
   */
  add(record: EpisodeRecord, start: number): void {
    if (isFaulty(record) || record.turns.length === 0) return;
    const isCurrent = ({ info }: EpisodeRecord["turns"][number]) =>
      String(info.version).startsWith(`${start}.`) && info.pinned !== true;
    if (!record.turns.every(isCurrent)) return;
    const parsed = record.turns.filter(({ action }) => action !== undefined).length;
    this.#episodes.push({
      success: succeeded(record) ? 1 : 0,
      reward: record.reward,
      parse: parsed / record.turns.length,
    });
    if (this.#episodes.length > this.#config.episodes) this.#episodes.shift();
  }

  /** Adds a value of a client's metric. */
  post(name: string, value: number): void {
    const values = this.#posted.get(name) ?? [];
    values.push(value);
    if (values.length > this.#config.episodes) values.shift();
    this.#posted.set(name, values);
  }

  /** Means over the latest episodes and values; a metric with too few of them is left out. */
  get quality(): Record<string, number> {
    const quality: Record<string, number> = {};
    if (this.#episodes.length >= this.#config.episodes)
      for (const name of ["success", "reward", "parse"] as const)
        quality[name] = mean(this.#episodes.map((measured) => measured[name]));
    for (const [name, values] of this.#posted)
      if (values.length >= this.#config.episodes) quality[name] = mean(values);
    return quality;
  }

  /** Forgets what was measured, because the weights have changed as a whole. */
  reset(): void {
    this.#episodes.length = 0;
    this.#posted.clear();
  }

  /** For each guarded metric the version in which it was best, if it was measured. */
  best(versions: readonly Version[]): Version[] {
    return Object.keys(this.#config.maxFall).flatMap((name) => bestOf(versions, name) ?? []);
  }

  /** The version to go back to, and why; undefined as long as no metric has fallen too far. */
  verdict(versions: readonly Version[]): { version: Version; reason: string } | undefined {
    const now = this.quality;
    for (const [name, maxFall] of Object.entries(this.#config.maxFall)) {
      const current = now[name];
      const best = bestOf(versions, name);
      if (current === undefined || best === undefined || best.quality[name]! - current <= maxFall) continue;
      const reason = `${name} fell from ${best.quality[name]!.toFixed(3)} to ${current.toFixed(3)}`;
      return { version: best, reason };
    }
    return undefined;
  }
}

/** The version in which a metric was best, the newest of equal ones. */
function bestOf(versions: readonly Version[], name: string): Version | undefined {
  return versions
    .filter(({ quality }) => quality[name] !== undefined)
    .sort((a, b) => b.quality[name]! - a.quality[name]! || b.checkpoint - a.checkpoint)[0];
}
