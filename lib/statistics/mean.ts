/** Mean and standard deviation. */

/** NaN if empty. Finite if all values are, even where their sum is not. */
export function mean(values: ArrayLike<number>): number {
  let sum = 0;
  for (let i = 0; i < values.length; i++) sum += values[i]!;
  if (values.length === 0) return Number.NaN;
  if (Number.isFinite(sum)) return sum / values.length;
  let shares = 0;
  for (let i = 0; i < values.length; i++) shares += values[i]! / values.length;
  return shares;
}

/** Standard deviation of a sample; NaN for less than two values. */
export function deviation(values: readonly number[]): number {
  const average = mean(values);
  const squares = values.reduce((sum, value) => sum + (value - average) ** 2, 0);
  return values.length < 2 ? Number.NaN : Math.sqrt(squares / (values.length - 1));
}
