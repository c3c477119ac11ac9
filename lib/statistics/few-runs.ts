/**
 * Statistics for few runs (Agarwal et al., "Deep reinforcement learning at the edge of the
 * statistical precipice", NeurIPS 2021): interquartile mean and probability of improvement.
 * resampling.ts computes their intervals.
 */

import { mean } from "./mean.ts";
import { quantile } from "./resampling.ts";

export function median(values: readonly number[]): number {
  return values.length === 0 ? Number.NaN : quantile(Float64Array.from(values).sort(), 0.5);
}

/**
 * The mean without the lowest and highest quarter (rounded down) of the values. NaN if empty, or if a
 * value is NaN: it would be sorted to one end, and dropped there in place of the best or worst value.
 */
export function interquartileMean(values: readonly number[]): number {
  if (values.some(Number.isNaN)) return Number.NaN;
  const sorted = [...values].sort((a, b) => a - b);
  const cut = Math.floor(sorted.length / 4);
  return mean(sorted.slice(cut, sorted.length - cut));
}

/** The share of pairs whose first value exceeds the second; ties count half. NaN without pairs. */
export function shareOfWins(pairs: readonly (readonly [number, number])[]): number {
  return mean(pairs.map(([x, y]) => (x > y ? 1 : x === y ? 0.5 : 0)));
}

/**
 * The probability that a value of `a` exceeds one of `b`, over all combinations; ties count half.
 * NaN if one is empty. For pairs, use `shareOfWins`: what both values of a pair have in common would
 * blur their order here.
 */
export function probabilityOfImprovement(a: readonly number[], b: readonly number[]): number {
  let wins = 0;
  for (const x of a) for (const y of b) wins += x > y ? 1 : x === y ? 0.5 : 0;
  return wins / (a.length * b.length);
}
