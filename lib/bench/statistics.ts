/** What is said of a row's samples. Medians and quartiles, as a busy moment shows in a mean. */

export interface Statistics {
  samples: number;
  min: number;
  /** Lower quartile, median, upper quartile: linear between neighbours. */
  q1: number;
  median: number;
  q3: number;
}

export function statistics(samples: readonly number[]): Statistics {
  const sorted = Float64Array.from(samples).sort();
  return {
    samples: sorted.length,
    min: sorted[0]!,
    q1: quantile(sorted, 0.25),
    median: quantile(sorted, 0.5),
    q3: quantile(sorted, 0.75),
  };
}

/** `sorted` must be ascending and not empty. */
export function quantile(sorted: Float64Array, share: number): number {
  const place = share * (sorted.length - 1);
  const below = Math.floor(place);
  const low = sorted[below]!;
  const high = sorted[Math.min(below + 1, sorted.length - 1)]!;
  return low + (high - low) * (place - below);
}
