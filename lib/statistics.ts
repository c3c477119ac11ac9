/** Quantiles, and percentile intervals from a stratified bootstrap: what figures of several kinds rest on. */

import { streams, uniform } from "./random.ts";
import type { Interval } from "./rollout/intervals.ts";

/** How often a bootstrap draws, and the share of the draws that an interval spans. */
export const resamples = 2000;
export const coverage = 0.95;

/** `sorted` must be ascending and not empty. */
export function quantile(sorted: Float64Array, share: number): number {
  const place = share * (sorted.length - 1);
  const below = Math.floor(place);
  const low = sorted[below]!;
  const high = sorted[Math.min(below + 1, sorted.length - 1)]!;
  return low + (high - low) * (place - below);
}

/**
 * The figures that `statistic` makes of `strata`, each with its interval. A draw takes as many runs from each stratum
 * as there are, with replacement, and so never mixes strata: the tasks of one method, or two methods to be compared.
 * A figure that is NaN in a draw does not count there.
 *
 * @param strata the runs of each stratum, whatever is known of a run: one score, or a curve
 * @param options.draws default `resamples`
 */
export function bootstrap<Run>(
  strata: readonly (readonly Run[])[],
  statistic: (strata: readonly (readonly Run[])[]) => readonly number[],
  options: { seed?: number; draws?: number } = {},
): Interval[] {
  const { seed = 0, draws = resamples } = options;
  const estimates = statistic(strata);
  const drawn = estimates.map((): number[] => []);
  let counter = 0;
  for (let draw = 0; draw < draws; draw++) {
    const sample = strata.map((runs) =>
      runs.map(() => runs[Math.floor(uniform(seed, streams.bootstrap, counter++) * runs.length)]!),
    );
    for (const [i, value] of statistic(sample).entries()) if (!Number.isNaN(value)) drawn[i]!.push(value);
  }
  return estimates.map((estimate, i) => {
    const sorted = Float64Array.from(drawn[i]!).sort();
    if (sorted.length === 0) return { estimate, low: Number.NaN, high: Number.NaN };
    const tail = (1 - coverage) / 2;
    return { estimate, low: quantile(sorted, tail), high: quantile(sorted, 1 - tail) };
  });
}
