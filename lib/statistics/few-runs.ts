/**
 * What may be said of few runs (Agarwal et al., "Deep reinforcement learning at the edge of the statistical
 * precipice", NeurIPS 2021): interquartile means, and the probability that one method's run ends above another's. Their
 * intervals are lib/statistics/resampling.ts's.
 */

import { mean } from "./mean.ts";
import { quantile } from "./resampling.ts";

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
