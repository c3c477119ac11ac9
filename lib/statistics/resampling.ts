/** Quantiles, stratified bootstrap intervals, and permutation tests. */

import { streams, uniform } from "../base/random.ts";
import type { Interval } from "./intervals.ts";

/** Default number of bootstrap samples, and the coverage of an interval. */
export const resamples = 2000;
export const coverage = 0.95;

/** The linearly interpolated quantile. `sorted` must be ascending and not empty. */
export function quantile(sorted: Float64Array, share: number): number {
  const place = share * (sorted.length - 1);
  const below = Math.floor(place);
  const low = sorted[below]!;
  const high = sorted[Math.min(below + 1, sorted.length - 1)]!;
  return low + (high - low) * (place - below);
}

/**
 * The figures that `statistic` computes from `strata`, with percentile intervals. Each bootstrap
 * sample draws runs with replacement within each stratum (the tasks of a method, or each of two
 * methods). A NaN in a sample is ignored.
 *
 * @param strata the runs of each stratum; a run may be a score or a curve
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

/** Limit for exact tests, and number of sampled permutations above it. C(20, 10) = 184,756 fits. */
const defaultMaxPermutations = 200_000;

export interface PermutationTest {
  /** Mean of the first sample minus that of the second; for pairs, the mean difference. */
  difference: number;
  /** Two-sided: twice the smaller tail, at most 1. */
  p: number;
  /** Whether all permutations were evaluated. */
  exact: boolean;
  /** Number of evaluated permutations. */
  permutations: number;
  /** Standard error of `p` due to sampling; 0 for an exact test. */
  standardError: number;
}

/**
 * Tests whether the means of `a` and `b` differ by permuting labels (Fisher, 1935; Pitman, 1937).
 * Two samples: every choice of a.length values for the first. Pairs: every choice of signs of the
 * differences. If there are more than `maxPermutations` permutations, as many are sampled and the
 * observed one is added (Phipson and Smyth, 2010), so that p is never 0.
 *
 * @param options.paired a[i] and b[i] are one pair; default false
 * @throws RangeError if a sample is empty, or pairs have different lengths
 */
export function permutationTest(
  a: readonly number[],
  b: readonly number[],
  options: { paired?: boolean; seed?: number; maxPermutations?: number } = {},
): PermutationTest {
  const { paired = false, seed = 0, maxPermutations = defaultMaxPermutations } = options;
  if (a.length === 0 || b.length === 0)
    throw new RangeError("A permutation test needs values in both samples.");
  if (paired && a.length !== b.length)
    throw new RangeError("A paired permutation test needs samples of equal length.");
  const statistic = paired ? signedMean(a.map((x, i) => x - b[i]!)) : differenceOfMeans(a, b);
  const count = paired ? 2 ** a.length : binomial(a.length + b.length, a.length);
  const exact = count <= maxPermutations;
  const difference = statistic.observed;
  // Tolerance for rounding, because the order of summation differs.
  const slack = 1e-12 * Math.max(...a.map(Math.abs), ...b.map(Math.abs), Number.MIN_VALUE);
  let low = 0;
  let high = 0;
  const see = (value: number) => {
    if (value <= difference + slack) low++;
    if (value >= difference - slack) high++;
  };
  const permutations = exact ? count : maxPermutations;
  if (exact) statistic.all(see);
  else {
    let counter = 0;
    const random = () => uniform(seed, streams.permutation, counter++);
    for (let draw = 0; draw < permutations; draw++) see(statistic.drawn(random));
  }
  const more = exact ? 0 : 1;
  const tail = (Math.min(low, high) + more) / (permutations + more);
  return {
    difference,
    p: Math.min(1, 2 * tail),
    exact,
    permutations,
    standardError: exact ? 0 : 2 * Math.sqrt((tail * (1 - tail)) / permutations),
  };
}

/** A statistic and its values under permutations. */
interface Permuted {
  observed: number;
  all(see: (value: number) => void): void;
  drawn(random: () => number): number;
}

function signedMean(differences: readonly number[]): Permuted {
  const size = differences.length;
  const meanWith = (isNegative: (i: number) => boolean) =>
    differences.reduce((sum, value, i) => sum + (isNegative(i) ? -value : value), 0) / size;
  return {
    observed: meanWith(() => false),
    all(see) {
      for (let signs = 0; signs < 2 ** size; signs++) see(meanWith((i) => ((signs >> i) & 1) === 1));
    },
    drawn: (random) => {
      const signs = differences.map(() => random() < 0.5);
      return meanWith((i) => signs[i]!);
    },
  };
}

function differenceOfMeans(a: readonly number[], b: readonly number[]): Permuted {
  const values = [...a, ...b];
  const total = values.reduce((sum, value) => sum + value, 0);
  const of = (first: number) => first / a.length - (total - first) / b.length;
  return {
    observed: of(a.reduce((sum, value) => sum + value, 0)),
    all(see) {
      const choose = (from: number, left: number, sum: number) => {
        if (left === 0) return see(of(sum));
        for (let i = from; i <= values.length - left; i++) choose(i + 1, left - 1, sum + values[i]!);
      };
      choose(0, a.length, 0);
    },
    drawn: (random) => {
      const rest = [...values];
      let sum = 0;
      for (let i = 0; i < a.length; i++) {
        const chosen = i + Math.floor(random() * (rest.length - i));
        sum += rest[chosen]!;
        rest[chosen] = rest[i]!;
      }
      return of(sum);
    },
  };
}

/** n over k; exact below 2^53. */
function binomial(n: number, k: number): number {
  let count = 1;
  for (let i = 1; i <= Math.min(k, n - k); i++) count = (count * (n - Math.min(k, n - k) + i)) / i;
  return Math.round(count);
}
