/**
 * Detects from the metrics of a run that it has collapsed, so that this is reported before the run
 * ends. Each kind of collapse is reported once.
 */

import { mean } from "../statistics/mean.ts";

/** Rows that are averaged. */
const window = 5;
/**
 * Success has collapsed if its best average was at least the first number, and the latest average
 * is below the second one's share of the best.
 */
const leastSuccess = 0.2;
const lostShare = 0.25;
/** The same for the share of readable actions. */
const leastReadable = 0.8;
const unreadableShare = 0.5;

export class CollapseDetector {
  readonly #watched = [
    new Fall("eval/success", "success in evaluations", { least: leastSuccess, share: lostShare }),
    new Fall("rollout/success", "success of training episodes", { least: leastSuccess, share: lostShare }),
    new Fall("parse/action", "the share of readable actions", {
      least: leastReadable,
      share: unreadableShare,
    }),
  ];

  /** A sentence if the run has collapsed with this row. */
  row(values: Readonly<Record<string, number>>): string | undefined {
    return this.#watched.map((fall) => fall.row(values)).find((message) => message !== undefined);
  }
}

/** A metric whose average over the last rows falls far below its best average. */
class Fall {
  readonly #latest: number[] = [];
  #best = Number.NEGATIVE_INFINITY;
  #reported = false;
  readonly #metric: string;
  readonly #label: string;
  readonly #limits: { least: number; share: number };

  constructor(metric: string, label: string, limits: { least: number; share: number }) {
    this.#metric = metric;
    this.#label = label;
    this.#limits = limits;
  }

  row(values: Readonly<Record<string, number>>): string | undefined {
    const value = values[this.#metric];
    if (value === undefined || !Number.isFinite(value)) return undefined;
    this.#latest.push(value);
    if (this.#latest.length > window) this.#latest.shift();
    if (this.#latest.length < window) return undefined;
    const now = mean(this.#latest);
    this.#best = Math.max(this.#best, now);
    const { least, share } = this.#limits;
    if (this.#reported || this.#best < least || now > share * this.#best) return undefined;
    this.#reported = true;
    return `${this.#label} fell from ${this.#best.toFixed(2)} to ${now.toFixed(2)} (means of ${window} rows)`;
  }
}
