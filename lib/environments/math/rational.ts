/** Exact fractions over BigInt, kept in lowest terms with a positive denominator, and bounded in size. */

export interface Rational {
  n: bigint;
  d: bigint;
}

/** Larger numerators and denominators are given up on, so that no input can take long. */
const mostBits = 16_384;

export function rational(n: bigint, d = 1n): Rational | undefined {
  if (d === 0n || bits(n) > mostBits || bits(d) > mostBits) return undefined;
  const sign = d < 0n ? -1n : 1n;
  const divisor = gcd(n < 0n ? -n : n, d * sign);
  return { n: (sign * n) / divisor, d: (sign * d) / divisor };
}

export function add(a: Rational, b: Rational): Rational | undefined {
  return rational(a.n * b.d + b.n * a.d, a.d * b.d);
}

export function multiply(a: Rational, b: Rational): Rational | undefined {
  return rational(a.n * b.n, a.d * b.d);
}

export function divide(a: Rational, b: Rational): Rational | undefined {
  return rational(a.n * b.d, a.d * b.n);
}

export function power(base: Rational, exponent: Rational): Rational | undefined {
  if (exponent.d !== 1n) return undefined;
  const size = exponent.n < 0n ? -exponent.n : exponent.n;
  if (size > BigInt(mostBits) || Number(size) * Math.max(bits(base.n), bits(base.d)) > mostBits)
    return undefined;
  if (base.n === 0n && exponent.n <= 0n) return exponent.n === 0n ? { n: 1n, d: 1n } : undefined;
  const raised = { n: base.n ** size, d: base.d ** size };
  return exponent.n < 0n ? rational(raised.d, raised.n) : rational(raised.n, raised.d);
}

export function equal(a: Rational, b: Rational): boolean {
  return a.n === b.n && a.d === b.d;
}

/** The nearest double, also where numerator and denominator alone are out of a double's range. */
export function toNumber(a: Rational): number {
  const direct = Number(a.n) / Number(a.d);
  if (Number.isFinite(direct)) return direct;
  const shift = BigInt(Math.max(0, Math.max(bits(a.n), bits(a.d)) - 1000));
  return Number(a.n >> shift) / Number(a.d >> shift);
}

/** A decimal literal such as "12.50"; undefined for anything else. */
export function parseDecimal(text: string): Rational | undefined {
  const match = /^(\d*)(?:\.(\d*))?$/.exec(text);
  if (match === null || text.length > 4000) return undefined;
  const whole = match[1] ?? "";
  const fraction = match[2] ?? "";
  if (whole + fraction === "") return undefined;
  return rational(BigInt(whole + fraction), 10n ** BigInt(fraction.length));
}

function bits(value: bigint): number {
  // Four bits a hexadecimal digit: near enough for a bound.
  return (value < 0n ? -value : value).toString(16).length * 4;
}

function gcd(a: bigint, b: bigint): bigint {
  while (b !== 0n) [a, b] = [b, a % b];
  return a === 0n ? 1n : a;
}
