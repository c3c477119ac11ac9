/**
 * 95 % intervals of shares and means over episodes. Episodes of the same task are not independent:
 * they form a group.
 */

import { getOrAdd } from "../base/get-or-add.ts";
import { mean } from "./mean.ts";

export interface Interval {
  estimate: number;
  low: number;
  high: number;
}

/** Within this many standard deviations of the mean lie 95 % of a normal distribution. */
const z = 1.959964;

/** 95 % Wilson score interval (1927) of a share `p` of `trials`; valid near 0 and 1. */
export function wilsonInterval(p: number, trials: number): Interval {
  if (trials === 0) return { estimate: Number.NaN, low: 0, high: 1 };
  const centre = p + (z * z) / (2 * trials);
  const spread = z * Math.sqrt((p * (1 - p)) / trials + (z * z) / (4 * trials * trials));
  const scale = 1 + (z * z) / trials;
  // At 0 and 1 the bound is exact; the formula would leave rounding errors.
  return {
    estimate: p,
    low: p === 0 ? 0 : (centre - spread) / scale,
    high: p === 1 ? 1 : (centre + spread) / scale,
  };
}

/**
 * Groups `values` with equal `keys`. The intervals below treat groups as independent, but not the
 * values within a group.
 */
export function grouped(values: readonly number[], keys: readonly unknown[]): number[][] {
  const groups = new Map<unknown, number[]>();
  for (const [i, value] of values.entries()) getOrAdd(groups, keys[i], () => []).push(value);
  return [...groups.values()];
}

/** The mean of all values and its cluster-robust variance (Miller, 2024); NaN below two groups. */
function groupedMean(groups: readonly (readonly number[])[]): { n: number; mean: number; variance: number } {
  const values = groups.flat();
  const n = values.length;
  const average = mean(values);
  const apart = groups.map((group) => group.reduce((sum, value) => sum + value - average, 0));
  const squares = apart.reduce((sum, difference) => sum + difference ** 2, 0);
  const count = groups.length;
  return { n, mean: average, variance: count < 2 ? Number.NaN : (squares / n ** 2) * (count / (count - 1)) };
}

/**
 * The mean with its 95 % interval by Student's t with one degree of freedom less than there are
 * groups; a normal interval of 5 groups covers the truth in 88 % of cases. NaN bounds for a single
 * group.
 */
export function meanInterval(groups: readonly (readonly number[])[]): Interval {
  const { mean: estimate, variance } = groupedMean(groups);
  const half = studentQuantile(groups.length - 1) * Math.sqrt(variance);
  return { estimate, low: estimate - half, high: estimate + half };
}

/** The value below which the absolute value of Student's t is in 95 % of cases; NaN for 0 degrees. */
export function studentQuantile(degrees: number): number {
  if (degrees < 1) return Number.NaN;
  let [low, high] = [1.95, 12.8]; // of an infinite and of one degree
  while (high - low > 1e-9) {
    const middle = (low + high) / 2;
    if (studentProbability(middle, degrees) < 0.95) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

/** P(|t| < x) (Abramowitz and Stegun, 26.7.3 and 26.7.4: finite sums for whole degrees). */
function studentProbability(x: number, degrees: number): number {
  const angle = Math.atan(x / Math.sqrt(degrees));
  const square = Math.cos(angle) ** 2;
  const odd = degrees % 2 === 1;
  let term = odd ? Math.cos(angle) : 1;
  let sum = degrees === 1 ? 0 : term;
  for (let k = odd ? 3 : 2; k <= degrees - 2; k += 2) {
    term *= (square * (k - 1)) / k;
    sum += term;
  }
  return odd ? (2 / Math.PI) * (angle + Math.sin(angle) * sum) : Math.sin(angle) * sum;
}

/** Larger than the variance that rounding gives groups of equal shares, such as 1/3. */
const rounding = 1e-24;

/**
 * 95 % interval of a share, the mean of values from 0 to 1 in groups: Wilson's for the effective
 * number of independent trials (Kish, 1965), at least one per group. With one trial per group it
 * equals `wilsonInterval`.
 *
 * @param trials an upper bound of the effective number. Default: the number of values
 */
export function shareInterval(
  groups: readonly (readonly number[])[],
  trials: number = groups.flat().length,
): Interval {
  const { mean: p, variance } = groupedMean(groups);
  // Without any variance, repeats give no information: each group counts once.
  const independent = variance > rounding ? (p * (1 - p)) / variance : 0;
  return wilsonInterval(p, Math.min(trials, Math.max(groups.length, independent)));
}
