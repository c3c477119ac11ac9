/**
 * What may be said of few runs (Agarwal et al., "Deep reinforcement learning at the edge of the statistical
 * precipice", NeurIPS 2021): interquartile means, percentile intervals of a stratified bootstrap, and the probability
 * that one method's run ends above another's.
 */

import { quantile } from "../bench/statistics.ts";
import { streams, uniform } from "../random.ts";
import type { Interval } from "../rollout/evaluate.ts";
import { mean } from "../rollout/losses.ts";

/** How often a bootstrap draws, and the share of the draws that an interval spans. */
export const resamples = 2000;
export const coverage = 0.95;

export function median(values: readonly number[]): number {
  return values.length === 0 ? Number.NaN : quantile(Float64Array.from(values).sort(), 0.5);
}

/** The mean of what remains when a quarter of the values, rounded down, is cut off at either end. NaN of none. */
export function interquartileMean(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const cut = Math.floor(sorted.length / 4);
  return mean(sorted.slice(cut, sorted.length - cut));
}

/** The probability that one of `a` is larger than one of `b`, a tie counting half. NaN where either is empty. */
export function probabilityOfImprovement(a: readonly number[], b: readonly number[]): number {
  let wins = 0;
  for (const x of a) for (const y of b) wins += x > y ? 1 : x === y ? 0.5 : 0;
  return wins / (a.length * b.length);
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
