/**
 * Guard rails of a served run: metrics of the latest episodes, compared with those of the stored
 * versions. If a metric has fallen too far, the weights of the best version are restored.
 */

import { z } from "zod";
import { getOrAdd } from "../base/get-or-add.ts";
import type { EpisodeRecord } from "../episodes/records.ts";
import { isFaulty, succeeded } from "../episodes/trajectory.ts";
import { mean } from "../statistics/mean.ts";
import type { Version } from "./versions.ts";

export const guardConfig = z.strictObject({
  /**
   * By metric, how far it may fall below its best kept version before the weights go back to that:
   * "success", "reward", "parse", "eval/success" (held-out episodes), or a metric that clients
   * post. Default: success 0.25, parse 0.25, eval/success 0.25.
   */
  maxFall: z
    .record(z.string(), z.number().positive())
    .default({ success: 0.25, parse: 0.25, "eval/success": 0.25 }),
  /** Latest episodes that are measured; no version is judged by fewer. Default 64. */
  episodes: z.int().min(1).default(64),
});

/** What the guard rails measure themselves; clients cannot post values under these names. */
export const measuredMetrics: readonly string[] = ["success", "reward", "parse", "eval/success"];

/** Maximum number of metrics with different names that clients can post. */
const maxPosted = 256;

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
  /** Success of the latest held-out episodes. */
  readonly #heldOut: number[] = [];
  /** Latest values of the metrics that clients post. */
  readonly #posted = new Map<string, number[]>();

  constructor(config: GuardConfig) {
    this.#config = config;
  }

  /**
   * Adds an episode. Success of held-out ones is the metric "eval/success". It is left out if
   * one of its turns was generated before the server's current start (or a rollback), or by a
   * version that the client requested: it then says nothing about the current weights.
   *
   * @param start number of the server's current start
   */
  add(record: EpisodeRecord, start: number): void {
    if (isFaulty(record) || !isOfStart(record, start)) return;
    const success = succeeded(record) ? 1 : 0;
    if (record.split === "test") {
      this.#keep(this.#heldOut, success);
      return;
    }
    const parsed = record.turns.filter(({ action }) => action !== undefined).length;
    this.#keep(this.#episodes, { success, reward: record.reward, parse: parsed / record.turns.length });
  }

  /** Whether clients can post metrics of these names: the number of different names is limited. */
  takes(names: readonly string[]): boolean {
    return new Set([...this.#posted.keys(), ...names]).size <= maxPosted;
  }

  /** Adds a value of a client's metric. One of `measuredMetrics` has no effect. */
  post(name: string, value: number): void {
    const values = getOrAdd(this.#posted, name, () => []);
    this.#keep(values, value);
  }

  /** Adds a measurement, in place of the oldest one if there are enough. */
  #keep<T>(latest: T[], measured: T): void {
    latest.push(measured);
    if (latest.length > this.#config.episodes) latest.shift();
  }

  /** Means over the latest episodes and values; a metric with too few of them is left out. */
  get quality(): Record<string, number> {
    const quality: Record<string, number> = {};
    if (this.#episodes.length >= this.#config.episodes)
      for (const name of ["success", "reward", "parse"] as const)
        quality[name] = mean(this.#episodes.map((measured) => measured[name]));
    if (this.#heldOut.length >= this.#config.episodes) quality["eval/success"] = mean(this.#heldOut);
    for (const [name, values] of this.#posted)
      if (values.length >= this.#config.episodes && !measuredMetrics.includes(name))
        quality[name] = mean(values);
    return quality;
  }

  /** Forgets what was measured, because the weights have changed as a whole. */
  reset(): void {
    this.#episodes.length = 0;
    this.#heldOut.length = 0;
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

/** Whether all turns were generated by current weights of a start, none by a requested version. */
export function isOfStart({ turns }: EpisodeRecord, start: number): boolean {
  const isCurrent = ({ info }: EpisodeRecord["turns"][number]) =>
    String(info.version).startsWith(`${start}.`) && info.pinned !== true;
  return turns.length > 0 && turns.every(isCurrent);
}

/** The version in which a metric was best, the newest of equal ones. */
function bestOf(versions: readonly Version[], name: string): Version | undefined {
  return versions
    .filter(({ quality }) => quality[name] !== undefined)
    .sort((a, b) => b.quality[name]! - a.quality[name]! || b.checkpoint - a.checkpoint)[0];
}
