/** How well forecasts of an event, as probabilities, agree with what happened. */

import { mean } from "./mean.ts";

/** A forecast and its result, both from 0 to 1. */
export interface Forecast {
  forecast: number;
  ended: number;
}

/** Mean squared error of forecasts (Brier, 1950); NaN if there are none. */
export function brier(forecasts: readonly Forecast[]): number {
  return mean(forecasts.map(({ forecast, ended }) => (forecast - ended) ** 2));
}

/**
 * The area under the ROC curve: the probability that a random positive has a higher score than a
 * random negative; a tie counts half. NaN if there are no positives or no negatives, or a score is
 * NaN.
 */
export function areaUnderCurve(positives: readonly number[], negatives: readonly number[]): number {
  const [p, n] = [positives.length, negatives.length];
  if (p === 0 || n === 0 || [...positives, ...negatives].some(Number.isNaN)) return Number.NaN;
  const scored = [
    ...positives.map((score) => ({ score, positive: true })),
    ...negatives.map((score) => ({ score, positive: false })),
  ].sort((a, b) => a.score - b.score);
  // The Mann-Whitney statistic: the sum of the positives' ranks, where ties share their mean rank.
  let ranks = 0;
  for (let start = 0; start < scored.length; ) {
    let end = start;
    while (end < scored.length && scored[end]!.score === scored[start]!.score) end++;
    const rank = (start + 1 + end) / 2;
    ranks += rank * scored.slice(start, end).filter(({ positive }) => positive).length;
    start = end;
  }
  return (ranks - (p * (p + 1)) / 2) / (p * n);
}
