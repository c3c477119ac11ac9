/** Statistics of samples: medians and quartiles, because means are sensitive to other load. */

import { quantile } from "../statistics/resampling.ts";

export interface Statistics {
  samples: number;
  min: number;
  /** Lower quartile, median, upper quartile, linearly interpolated. */
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
