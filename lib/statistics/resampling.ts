/** Quantiles, and percentile intervals from a stratified bootstrap: what figures of several kinds rest on. */

import { streams, uniform } from "../base/random.ts";
import type { Interval } from "./intervals.ts";

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

/**
 * Beyond as many permutations, as many are drawn instead of going through all. C(20, 10) = 184,756 is
 * below.
 */
export const defaultMaxPermutations = 200_000;

export interface PermutationTest {
  /** Mean of the first sample less the mean of the second; of pairs, the mean difference. */
  difference: number;
  /** Two-sided: twice the smaller tail, at most 1. */
  p: number;
  /** Whether every permutation was gone through. */
  exact: boolean;
  /** Gone through, or drawn. */
  permutations: number;
  /** Standard error of `p` from the drawing; 0 of an exact test. */
  standardError: number;
}

/**
 * Tests whether `a` and `b` differ in their means by permuting labels (Fisher, 1935; Pitman, 1937).
 * Two samples: every choice of a.length of all values for the first. Pairs: every choice of signs
 * of the differences. All permutations count where there are at most `maxPermutations`; else as many are
 * drawn, and the observed one counts among them (Phipson and Smyth, 2010), so that p is never 0.
 *
 * @param options.paired a[i] and b[i] are one pair; default false
 * @throws RangeError where a sample is empty, or pairs have different lengths
 */
export function permutationTest(
  a: readonly number[],
  b: readonly number[],
  options: { paired?: boolean; seed?: number; maxPermutations?: number } = {},
): PermutationTest {
  const { paired = false, seed = 0, maxPermutations = defaultMaxPermutations } = options;
  if (a.length === 0 || b.length === 0)
    throw new RangeError("A permutation test needs values on both sides.");
  if (paired && a.length !== b.length)
    throw new RangeError("A paired permutation test needs as many values on both sides.");
  const statistic = paired ? signedMean(a.map((x, i) => x - b[i]!)) : differenceOfMeans(a, b);
  const count = paired ? 2 ** a.length : binomial(a.length + b.length, a.length);
  const exact = count <= maxPermutations;
  const difference = statistic.observed;
  // Sums in another order differ by rounding alone.
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

/** A statistic with the values that it takes when labels are permuted. */
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
