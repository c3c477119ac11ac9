/**
 * Whether two expressions are the same function of their names, by values that mathjs computes: at
 * many points, to 64 digits if they are real, else in double precision. The first comparison loads
 * mathjs and none has a time bound, so only the grader's own thread does this: see worker.ts.
 */

import { createHash } from "node:crypto";
import Fraction from "fraction.js";
import type { BigNumber, Complex, Matrix } from "mathjs";
import mathjs from "mathjs/lib/browser/math.js";
import { roundsTo } from "./exact.ts";
import { hasName, type Node } from "./node.ts";

const math = mathjs.create(mathjs.all!, { number: "BigNumber", precision: 64 });

type Scalar = BigNumber | Complex;
type Value = Scalar | Matrix;
/** mathjs chooses the arithmetic by the values' types. */
const compute = math as unknown as Record<string, (...values: Value[]) => Value>;

/**
 * The values of names at a point: real, whole (needed by factorials and binomials) or complex.
 * Complex points are used only if the others leave two expressions undecided.
 */
interface Point {
  kind: "real" | "whole" | "complex";
  number: number;
}

const pointsOf = (kind: Point["kind"], count: number): Point[] =>
  Array.from({ length: count }, (_, number) => ({ kind, number }));
const realPoints = [...pointsOf("real", 5), ...pointsOf("whole", 5)];
const complexPoints = pointsOf("complex", 4);
/** Number of points at which two expressions with names must have a value. */
const enough = 3;
/** Sums and products of more terms, and factorials of larger numbers, have no value here. */
const maxTerms = 1000;
const largestFactorial = 5000;
/** Larger matrices and higher powers of them have no value here. */
const maxEntries = 100;
const largestMatrixPower = 100;

/**
 * Whether a and b have the same value wherever both have one; for a number, either may be a decimal
 * of the other.
 */
export function sameValue(a: Node, b: Node): boolean {
  const named = hasName(a) || hasName(b);
  for (const points of [realPoints, complexPoints]) {
    let agreed = 0;
    for (const [x, y] of valuesAt(points, a, b)) {
      if (!close(x, y) && (named || !(isRounded(x, b) || isRounded(y, a)))) return false;
      agreed++;
      if (!named) return true;
    }
    if (agreed >= enough) return true;
  }
  return false;
}

/** Whether a = c · b for a number c ≠ 0, with c > 0 if `positive`. */
export function proportional(a: Node, b: Node, positive: boolean): boolean {
  if (!hasName(a) || !hasName(b)) return false;
  const quotient: Node = { kind: "quotient", left: a, right: b };
  for (const points of [realPoints, complexPoints]) {
    let ratio: Value | undefined;
    let agreed = 0;
    for (const [x] of valuesAt(points, quotient, b)) {
      ratio ??= x;
      if (isMatrix(x) || !close(x, ratio)) return false;
      agreed++;
    }
    if (agreed >= enough && !close(ratio!, math.bignumber(0))) return !positive || isPositive(ratio!);
  }
  return false;
}

/** The values of a and b at points where both have one. */
function* valuesAt(points: readonly Point[], a: Node, b: Node): Generator<[Value, Value]> {
  for (const point of points) {
    const x = valueAt(point, a);
    const y = x && valueAt(point, b);
    if (x && y) yield [x, y];
  }
}

function isPositive(value: Value): boolean {
  if (isMatrix(value)) return false;
  return isComplex(value) ? Math.abs(value.im) < 1e-10 && value.re > 0 : value.isPositive();
}

function close(x: Value, y: Value): boolean {
  if (isMatrix(x) || isMatrix(y)) {
    if (!isMatrix(x) || !isMatrix(y)) return false;
    const [left, right] = [rows(x), rows(y)];
    return everyEntry(left, right, close);
  }
  if (isComplex(x) || isComplex(y)) {
    const size = Math.max(Number(math.abs(x)), Number(math.abs(y)));
    return Number(math.abs(compute.subtract!(x, y))) <= 1e-10 * size || size < 1e-13;
  }
  const distance = x.minus(y).abs();
  return distance.lte(x.abs().times(1e-40)) || (distance.lt(1e-50) && distance.gt(1e-100));
}

/** Whether a literal, or each entry of a literal matrix, is a decimal that the value rounds to. */
function isRounded(value: Value, literal: Node): boolean {
  if (isMatrix(value)) {
    return (
      literal.kind === "matrix" &&
      everyEntry(rows(value), literal.rows, (entry, node) => {
        const exact = valueAt(realPoints[0]!, node);
        return (exact !== undefined && close(entry, exact)) || isRounded(entry, node);
      })
    );
  }
  if (isComplex(value) || value.abs().gt(1e300)) return false;
  return roundsTo(new Fraction(value.toFixed(60)), true, literal);
}

function isComplex(value: Value): value is Complex {
  return math.isComplex(value);
}

function isMatrix(value: Value): value is Matrix {
  return math.isMatrix(value);
}

function rows(matrix: Matrix): Scalar[][] {
  return matrix.toArray() as Scalar[][];
}

function everyEntry<A, B>(a: A[][], b: B[][], holds: (x: A, y: B) => boolean): boolean {
  return (
    a.length === b.length &&
    a.every((row, i) => row.length === b[i]!.length && row.every((entry, j) => holds(entry, b[i]![j]!)))
  );
}

class NoValue extends Error {}

/** mathjs adds a number to every entry of a matrix, which is not a valid sum. */
function add(x: Value, y: Value): Value {
  if (isMatrix(x) !== isMatrix(y)) throw new NoValue();
  if (isMatrix(x) && isMatrix(y) && math.size(x).toString() !== math.size(y).toString()) throw new NoValue();
  return compute.add!(x, y);
}

function valueAt(point: Point, node: Node): Value | undefined {
  try {
    return new Evaluation(point).of(node);
  } catch {
    // NoValue, or mathjs's own error for undefined values: there is no value in either case.
    return undefined;
  }
}

/**
 * Evaluates one expression at one point. Throws if it has no value: sets, tuples, infinity,
 * division by zero.
 */
class Evaluation {
  private readonly point: Point;
  /** Indices of the sums and products around the current node. */
  private readonly indices = new Map<string, Scalar>();
  /** Whether the current node is in a trigonometric function, where degrees are angles. */
  private inAngle = false;

  constructor(point: Point) {
    this.point = point;
  }

  of(node: Node): Value {
    const value = this.compute(node);
    if (!isMatrix(value)) return this.checked(value);
    const entries = rows(value).map((row) => row.map((entry) => this.checked(entry)));
    // The product of a row and a column is a number.
    return entries.length === 1 && entries[0]!.length === 1 ? entries[0]![0]! : math.matrix(entries);
  }

  private scalar(node: Node): Scalar {
    const value = this.of(node);
    if (isMatrix(value)) throw new NoValue();
    return value;
  }

  private checked(value: Scalar): Scalar {
    if (!isComplex(value)) {
      if (!value.isFinite()) throw new NoValue();
      return value;
    }
    // At real points, complex intermediate values are excluded, so that √a √b = √(ab) wherever both
    // have a value.
    if (this.point.kind !== "complex") throw new NoValue();
    if (!Number.isFinite(value.re) || !Number.isFinite(value.im)) throw new NoValue();
    // Roots and logarithms of a negative number use one side of the branch cut: the imaginary part
    // is never -0.
    return math.complex(value.re, value.im + 0);
  }

  private compute(node: Node): Value {
    switch (node.kind) {
      case "number":
        return this.number(`${node.value.n}`, `${node.value.d}`);
      case "constant":
        return this.constant(node.name);
      case "name":
        return this.indices.get(node.name) ?? this.valueOfName(node.name);
      case "text":
        return this.valueOfName(`text ${node.text}`);
      case "unit":
        return this.of(node.of);
      case "negative":
        return compute.unaryMinus!(this.of(node.of));
      case "percent":
        return compute.divide!(this.of(node.of), this.number("100"));
      case "degrees": {
        const degrees = this.scalar(node.of);
        if (!this.inAngle) return degrees;
        return compute.divide!(compute.multiply!(degrees, this.constant("pi")), this.number("180"));
      }
      case "sum":
        return node.items.map((item) => this.of(item)).reduce((total, item) => add(total, item));
      case "product":
        return node.items
          .map((item) => this.of(item))
          .reduce((total, item) => compute.multiply!(total, item));
      case "quotient":
        return compute.divide!(this.of(node.left), this.scalar(node.right));
      case "power":
        return this.power(this.of(node.left), this.scalar(node.right));
      case "root":
        return this.root(this.scalar(node.left), this.scalar(node.right));
      case "matrix":
        return this.matrix(node.rows, node.style);
      case "tuple":
        // A point in arithmetic is a vector.
        if (node.open !== "(" || node.close !== ")") throw new NoValue();
        return this.matrix(
          node.items.map((item) => [item]),
          "pmatrix",
        );
      case "factorial":
        return this.factorial(this.real(this.scalar(node.of)));
      case "call":
        return this.call(node.name, node.arguments);
      default:
        throw new NoValue();
    }
  }

  private matrix(nodes: readonly Node[][], style: string): Value {
    const width = nodes[0]!.length;
    if (nodes.length * width > maxEntries || nodes.some((row) => row.length !== width)) throw new NoValue();
    const matrix = math.matrix(nodes.map((row) => row.map((entry) => this.scalar(entry))));
    return style === "vmatrix" ? compute.det!(matrix) : matrix;
  }

  private power(base: Value, exponent: Scalar): Value {
    if (isMatrix(base) && this.real(exponent).abs().gt(largestMatrixPower)) throw new NoValue();
    return compute.pow!(base, isMatrix(base) ? this.real(exponent) : exponent);
  }

  private number(numerator: string, denominator = "1"): Scalar {
    return this.lift(math.bignumber(numerator).div(math.bignumber(denominator)));
  }

  /** Converts a real number to this point's arithmetic. */
  private lift(value: Scalar): Scalar {
    return this.point.kind === "complex" && !isComplex(value) ? math.complex(Number(value), 0) : value;
  }

  /** Converts a real number from this point's arithmetic. */
  private real(value: Scalar): BigNumber {
    if (!isComplex(value)) return value;
    if (value.im !== 0) throw new NoValue();
    return math.bignumber(value.re);
  }

  private constant(name: string): Scalar {
    if (name === "pi") return this.lift(math.acos(math.bignumber(-1)) as Scalar);
    if (name === "e") return this.lift(math.exp(math.bignumber(1)));
    if (name === "i" && this.point.kind === "complex") return math.complex(0, 1);
    throw new NoValue();
  }

  private factorial(of: BigNumber): Value {
    if (of.gt(largestFactorial)) throw new NoValue();
    return this.lift(compute.factorial!(of) as Scalar);
  }

  /** The n-th root; for a negative number and odd n the real one. */
  private root(of: Scalar, n: Scalar): Value {
    const value = isComplex(of) && of.im !== 0 ? undefined : this.real(of);
    const degree = this.real(n);
    if (value !== undefined && degree.isInteger() && (!value.isNegative() || !degree.mod(2).isZero()))
      return this.lift(math.nthRoot(value, degree) as Scalar);
    return compute.pow!(of, compute.divide!(this.number("1"), n));
  }

  private call(name: string, parameters: readonly Node[]): Value {
    if (name === "sum" || name === "prod") return this.series(name, parameters);
    if (name === "det" || name === "transpose") {
      const matrix = this.of(parameters[0]!);
      if (!isMatrix(matrix)) throw new NoValue();
      return compute[name]!(matrix);
    }
    const outer = this.inAngle;
    this.inAngle ||= /^(?:sin|cos|tan|cot|sec|csc)$/.test(name);
    const values = parameters.map((parameter) => this.scalar(parameter));
    this.inAngle = outer;
    const [x, second] = values as [Scalar, Scalar | undefined];
    switch (name) {
      case "log":
      case "lg":
        // Without a base: the decimal logarithm.
        return compute.divide!(compute.log!(x), compute.log!(second ?? this.number("10")));
      case "floor":
      case "ceil": {
        // The logarithm of 8 to base 2 must not become 2.
        const whole = math.round(this.real(x), 50);
        return this.lift(name === "floor" ? whole.floor() : whole.ceil());
      }
    }
    const known = Object.hasOwn(functions, name) ? functions[name] : undefined;
    if (known === undefined) {
      const written = values.map((value) => math.format(value, isComplex(value) ? 9 : 40));
      return this.valueOfName(`${name}(${written.join(";")})`);
    }
    if (wholeNumbers.test(known))
      return this.lift(compute[known]!(...values.map((value) => this.real(value))) as Scalar);
    return this.lift(compute[known]!(...values) as Scalar);
  }

  /** A sum or product of `body` over whole numbers. */
  private series(name: "sum" | "prod", [index, low, high, body]: readonly Node[]): Value {
    if (index?.kind !== "name") throw new NoValue();
    const from = this.real(this.scalar(low!));
    const to = this.real(this.scalar(high!));
    if (!from.isInteger() || !to.isInteger() || to.minus(from).gt(maxTerms)) throw new NoValue();
    const outer = this.indices.get(index.name);
    let total: Value = this.number(name === "sum" ? "0" : "1");
    for (let at = from; at.lte(to); at = at.plus(1)) {
      this.indices.set(index.name, this.lift(at));
      total = compute[name === "sum" ? "add" : "multiply"]!(total, this.of(body!));
    }
    if (outer === undefined) this.indices.delete(index.name);
    else this.indices.set(index.name, outer);
    return total;
  }

  /** A pseudorandom value determined by the name; an unknown function counts as a name too. */
  private valueOfName(name: string): Scalar {
    const { kind, number } = this.point;
    const chance = createHash("sha256").update(`${number} ${name}`).digest();
    const size = 0.4 + 2.2 * (chance.readUInt32BE(0) / 2 ** 32);
    if (kind === "whole") return math.bignumber(2 + (chance.readUInt32BE(0) % 13));
    if (kind === "complex") return math.complex(size, 0.3 + chance.readUInt32BE(4) / 2 ** 32);
    // All names positive, of either sign, all negative.
    const negative = number >= 4 || (number === 3 && chance.readUInt32BE(4) % 2 === 1);
    return math.bignumber(negative ? -size : size);
  }
}

/** mathjs's names for functions. */
const functions: Record<string, string> = {
  ...Object.fromEntries(
    "sin cos tan cot sec csc sinh cosh tanh exp abs max min gcd lcm mod"
      .split(" ")
      .map((name) => [name, name]),
  ),
  arcsin: "asin",
  arccos: "acos",
  arctan: "atan",
  ln: "log",
  binomial: "combinations",
};
const wholeNumbers = /^(?:max|min|gcd|lcm|mod|combinations)$/;
