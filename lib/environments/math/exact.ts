/**
 * Exact values: fractions of BigInts by fraction.js, bounded in size so that no input takes long.
 */

import Fraction from "fraction.js";
import type { Node } from "./node.ts";

/** Remaining work of one comparison, in visited nodes. Shared by all parts of the comparison. */
export interface Fuel {
  left: number;
}

export class OutOfFuel extends Error {}

export function burn(fuel: Fuel, amount = 1): void {
  fuel.left -= amount;
  if (fuel.left < 0) throw new OutOfFuel();
}

/** Larger numerators and denominators are not computed. */
const maxBits = 16_384;
const largestFactorial = 600n;
/** Rounded decimals of a fraction must have at least this many places. */
const minPlaces = 6;
const maxPlaces = 300;

/**
 * The exact value of an expression of fractions; undefined if it contains a name, a root or a
 * constant.
 */
export function exact(node: Node, fuel: Fuel): Fraction | undefined {
  burn(fuel);
  switch (node.kind) {
    case "number":
      return node.value;
    case "unit":
    case "degrees":
      return exact(node.of, fuel);
    case "negative":
      return exact(node.of, fuel)?.neg();
    case "percent":
      return bounded(exact(node.of, fuel)?.div(100), fuel);
    case "sum":
    case "product": {
      let total: Fraction | undefined = new Fraction(node.kind === "sum" ? 0 : 1);
      for (const item of node.items) {
        const value = exact(item, fuel);
        if (value === undefined || total === undefined) return undefined;
        total = bounded(node.kind === "sum" ? total.add(value) : total.mul(value), fuel);
      }
      return total;
    }
    case "quotient": {
      const left = exact(node.left, fuel);
      const right = left && exact(node.right, fuel);
      return left && right && right.n !== 0n ? bounded(left.div(right), fuel) : undefined;
    }
    case "power": {
      const base = exact(node.left, fuel);
      const exponent = base && exact(node.right, fuel);
      return base && exponent && power(base, exponent, fuel);
    }
    case "factorial": {
      const of = exact(node.of, fuel);
      if (of === undefined || !isWhole(of) || of.s < 0n || of.n > largestFactorial) return undefined;
      return new Fraction(productOf(1n, of.n, fuel));
    }
    case "call":
      return call(node.name, node.arguments, fuel);
    default:
      return undefined;
  }
}

/** Undefined for values that are too large. */
function bounded(value: Fraction | undefined, fuel: Fuel): Fraction | undefined {
  if (value === undefined) return undefined;
  const size = bits(value);
  // Cost of reducing a fraction.
  burn(fuel, (size >> 6) ** 2);
  return size > maxBits ? undefined : value;
}

function bits(value: Fraction): number {
  return Math.max(value.n.toString(2).length, value.d.toString(2).length);
}

function isWhole(value: Fraction): boolean {
  return value.d === 1n;
}

/** Only whole exponents, since roots of fractions would require factoring. */
function power(base: Fraction, exponent: Fraction, fuel: Fuel): Fraction | undefined {
  // The result has at least this many bits.
  if (!isWhole(exponent) || exponent.n > maxBits || Number(exponent.n) * (bits(base) - 1) > maxBits)
    return undefined;
  if (base.n === 0n && exponent.s <= 0n) return exponent.n === 0n ? new Fraction(1) : undefined;
  return bounded(base.pow(exponent), fuel);
}

/** low · (low + 1) · … · high */
function productOf(low: bigint, high: bigint, fuel: Fuel): bigint {
  burn(fuel, Number(high - low) + 1);
  let product = 1n;
  for (let i = low; i <= high; i++) product *= i;
  return product;
}

function call(name: string, parameters: readonly Node[], fuel: Fuel): Fraction | undefined {
  if (!/^(?:abs|floor|ceil|binomial|max|min|gcd|lcm|mod)$/.test(name)) return undefined;
  const values: Fraction[] = [];
  for (const parameter of parameters) {
    const value = exact(parameter, fuel);
    if (value === undefined) return undefined;
    values.push(value);
  }
  const [first, second] = values;
  if (first === undefined) return undefined;
  switch (name) {
    case "abs":
      return first.abs();
    case "floor":
      return first.floor();
    case "ceil":
      return first.ceil();
    case "binomial": {
      if (second === undefined || !isWhole(first) || !isWhole(second)) return undefined;
      if (first.s < 0n || second.s < 0n || second.n > first.n) return undefined;
      const k = second.n < first.n - second.n ? second.n : first.n - second.n;
      if (k > largestFactorial || Number(k) * bits(first) > maxBits) return undefined;
      return bounded(new Fraction(productOf(first.n - k + 1n, first.n, fuel), productOf(1n, k, fuel)), fuel);
    }
    case "mod":
      // For whole numbers, with a result ≥ 0: -1 mod 5 is 4.
      if (second === undefined || second.n === 0n || !isWhole(first) || !isWhole(second)) return undefined;
      return first.sub(second.mul(first.div(second).floor()));
    case "max":
      return values.reduce((best, value) => (value.gt(best) ? value : best));
    case "min":
      return values.reduce((best, value) => (value.lt(best) ? value : best));
    default:
      if (!values.every(isWhole)) return undefined;
      return bounded(
        values.reduce((total, value) => (name === "gcd" ? total.gcd(value) : total.lcm(value))),
        fuel,
      );
  }
}

/**
 * Whether `literal` is a decimal that `value` rounds or truncates to. For an irrational number four
 * digits are enough. A fraction can be written exactly, so its decimals must have six places and
 * must not terminate earlier.
 *
 * @param value the number itself, or for an irrational one a fraction closer to it than any decimal
 *   in an answer
 */
export function roundsTo(value: Fraction, irrational: boolean, literal: Node): boolean {
  const decimal = asDecimal(literal);
  if (decimal === undefined) return false;
  const { places, significant } = decimal;
  if (irrational ? significant < 4 : significant < 5 || places < minPlaces || terminates(value)) return false;
  const off = value.sub(decimal.value).mul(new Fraction(10n ** BigInt(places)));
  return off.abs().lte(0.5) || (significant >= 6 && off.abs().lt(1) && off.s === decimal.value.s);
}

/** Whether one of two decimals rounds to the other, which has at least six places. */
export function roundedAlike(a: Node, b: Node): boolean {
  const [first, second] = [asDecimal(a), asDecimal(b)];
  if (first === undefined || second === undefined || first.places === second.places) return false;
  const places = Math.min(first.places, second.places);
  const half = new Fraction(1n, 2n * 10n ** BigInt(places));
  return places >= minPlaces && first.value.sub(second.value).abs().lte(half);
}

interface Decimal {
  value: Fraction;
  /** Digits after the point, and digits from the first that is not 0. */
  places: number;
  significant: number;
}

/** A numeral with a point, its negative, or one times a power of ten. */
function asDecimal(node: Node): Decimal | undefined {
  if (node.kind === "negative") {
    const of = asDecimal(node.of);
    return of && { ...of, value: of.value.neg() };
  }
  if (node.kind === "number" && node.digits.includes(".")) {
    const places = node.digits.length - node.digits.indexOf(".") - 1;
    const significant = node.digits.replace(".", "").replace(/^0+/, "").length;
    return { value: node.value, places, significant };
  }
  if (node.kind !== "product" || node.items.length !== 2) return undefined;
  const [mantissa, power] = node.items as [Node, Node];
  const digits = asDecimal(mantissa);
  const exponent = digits && tenTo(power);
  if (exponent === undefined || Math.abs(exponent) > maxPlaces || digits!.places < exponent) return undefined;
  const { value, places, significant } = digits!;
  return { value: value.mul(new Fraction(10).pow(exponent)!), places: places - exponent, significant };
}

/** The exponent of a power of ten. */
function tenTo(node: Node): number | undefined {
  if (node.kind !== "power" || node.left.kind !== "number" || node.left.digits !== "10") return undefined;
  const sign = node.right.kind === "negative" ? -1 : 1;
  const exponent = node.right.kind === "negative" ? node.right.of : node.right;
  return exponent.kind === "number" && exponent.value.d === 1n ? sign * Number(exponent.value.n) : undefined;
}

function terminates(value: Fraction): boolean {
  let { d } = value;
  for (const factor of [2n, 5n]) while (d % factor === 0n) d /= factor;
  return d === 1n;
}
