/**
 * 95 % intervals of shares and means over episodes, of which those on one task are not independent of each other: a task's
 * are a group.
 */

import { mean } from "./mean.ts";

export interface Interval {
  estimate: number;
  low: number;
  high: number;
}

/** 95 % interval of a share `p` of `trials` (Wilson, 1927): honest near 0 and 1 and for few trials. */
export function wilsonInterval(p: number, trials: number, z = 1.959964): Interval {
  if (trials === 0) return { estimate: Number.NaN, low: 0, high: 1 };
  const centre = p + (z * z) / (2 * trials);
  const spread = z * Math.sqrt((p * (1 - p)) / trials + (z * z) / (4 * trials * trials));
  const scale = 1 + (z * z) / trials;
  // At 0 and 1 the bound is exact; the formula leaves rounding noise there.
  return {
    estimate: p,
    low: p === 0 ? 0 : (centre - spread) / scale,
    high: p === 1 ? 1 : (centre + spread) / scale,
  };
}

/**
 * `values` in groups of equal `keys`. The intervals below take groups to be independent of each other, and the values
 * in one group not to be: four episodes on one task tell less than one on each of four.
 */
export function grouped(values: readonly number[], keys: readonly unknown[]): number[][] {
  const groups = new Map<unknown, number[]>();
  for (const [i, value] of values.entries()) {
    const group = groups.get(keys[i]);
    if (group === undefined) groups.set(keys[i], [value]);
    else group.push(value);
  }
  return [...groups.values()];
}

/** Mean over all values and, clustered by group, the variance of that mean (Miller, 2024); NaN for less than two groups. */
function groupedMean(groups: readonly (readonly number[])[]): { n: number; mean: number; variance: number } {
  const values = groups.flat();
  const n = values.length;
  const average = mean(values);
  const apart = groups.map((group) => group.reduce((sum, value) => sum + value - average, 0));
  const squares = apart.reduce((sum, difference) => sum + difference ** 2, 0);
  const count = groups.length;
  return { n, mean: average, variance: count < 2 ? Number.NaN : (squares / n ** 2) * (count / (count - 1)) };
}

/** Mean with its 95 % interval under the normal approximation; one group has no interval. */
export function meanInterval(groups: readonly (readonly number[])[], z = 1.959964): Interval {
  const { mean: estimate, variance } = groupedMean(groups);
  const half = z * Math.sqrt(variance);
  return { estimate, low: estimate - half, high: estimate + half };
}

/**
 * 95 % interval of a share, the mean of values from 0 to 1 in groups: Wilson's for as many independent trials as would vary
 * as much (Kish, 1965), at least one a group. With one trial a group it is `wilsonInterval`.
 *
 * @param trials on which the values rest: the most that they can tell. Default: one a value
 */
export function shareInterval(
  groups: readonly (readonly number[])[],
  trials: number = groups.flat().length,
): Interval {
  const { mean: p, variance } = groupedMean(groups);
  // Where nothing varies there is nothing to tell repeats from: a group counts once.
  const independent = variance > 0 ? (p * (1 - p)) / variance : 0;
  return wilsonInterval(p, Math.min(trials, Math.max(groups.length, independent)));
}
