/** Values of parsed answers: exact fractions where possible, else complex doubles at given points. */

import type { Complex } from "./complex.ts";
import * as complex from "./complex.ts";
import type { Node } from "./parse.ts";
import type { Rational } from "./rational.ts";
import * as rational from "./rational.ts";

/** Work still allowed to one comparison, in visited nodes. Shared by everything that one comparison starts. */
export interface Fuel {
  left: number;
}

export class OutOfFuel extends Error {}

export function burn(fuel: Fuel, amount = 1): void {
  fuel.left -= amount;
  if (fuel.left < 0) throw new OutOfFuel();
}

const largestFactorial = 600n;

/** The exact value of an expression of fractions; undefined where there is a name, a root or a constant. */
export function exact(node: Node, fuel: Fuel): Rational | undefined {
  burn(fuel);
  switch (node.kind) {
    case "number":
      return node.value;
    case "unit":
      return exact(node.of, fuel);
    case "negative": {
      const of = exact(node.of, fuel);
      return of && { n: -of.n, d: of.d };
    }
    case "percent": {
      const of = exact(node.of, fuel);
      return of && rational.rational(of.n, of.d * 100n);
    }
    case "degrees":
      return exact(node.of, fuel);
    case "sum":
    case "product": {
      let total: Rational | undefined = { n: node.kind === "sum" ? 0n : 1n, d: 1n };
      for (const item of node.items) {
        const value = exact(item, fuel);
        if (value === undefined || total === undefined) return undefined;
        burn(fuel, value.n.toString(16).length >> 6);
        total = node.kind === "sum" ? rational.add(total, value) : rational.multiply(total, value);
      }
      return total;
    }
    case "quotient": {
      const left = exact(node.left, fuel);
      const right = left && exact(node.right, fuel);
      return left && right && rational.divide(left, right);
    }
    case "power": {
      const base = exact(node.left, fuel);
      const exponent = base && exact(node.right, fuel);
      burn(fuel, 20);
      return base && exponent && rational.power(base, exponent);
    }
    case "factorial": {
      const of = exact(node.of, fuel);
      return of && factorial(of, fuel);
    }
    case "call":
      return exactCall(node.name, node.arguments, fuel);
    default:
      return undefined;
  }
}

function factorial(of: Rational, fuel: Fuel): Rational | undefined {
  if (of.d !== 1n || of.n < 0n || of.n > largestFactorial) return undefined;
  burn(fuel, Number(of.n));
  let product = 1n;
  for (let i = 2n; i <= of.n; i++) product *= i;
  return { n: product, d: 1n };
}

function exactCall(name: string, parameters: readonly Node[], fuel: Fuel): Rational | undefined {
  if (!/^(?:abs|floor|ceil|binomial|max|min)$/.test(name)) return undefined;
  const values: Rational[] = [];
  for (const parameter of parameters) {
    const value = exact(parameter, fuel);
    if (value === undefined) return undefined;
    values.push(value);
  }
  const [first, second] = values;
  if (first === undefined) return undefined;
  switch (name) {
    case "abs":
      return { n: first.n < 0n ? -first.n : first.n, d: first.d };
    case "floor":
    case "ceil": {
      const down = first.n / first.d - (first.n < 0n && first.n % first.d !== 0n ? 1n : 0n);
      return { n: name === "ceil" && first.d !== 1n ? down + 1n : down, d: 1n };
    }
    case "binomial": {
      if (second === undefined || first.d !== 1n || second.d !== 1n) return undefined;
      let k = first.n - second.n;
      if (second.n < k) k = second.n;
      if (k < 0n || first.n < 0n || k > largestFactorial) return undefined;
      burn(fuel, Number(k));
      let result = 1n;
      for (let i = 1n; i <= k; i++) result = (result * (first.n - k + i)) / i;
      return rational.rational(result);
    }
    case "max":
    case "min":
      return values.reduce((best, value) => {
        const greater = value.n * best.d > best.n * value.d;
        return greater === (name === "max") ? value : best;
      });
    default:
      return undefined;
  }
}

/** Where names are probed: positive, of either sign, negative, and off the real line. */
export const probes = 4;

/**
 * The value at probe `point`, where every name has a pseudo-random value of its own. Undefined for what has no
 * number: sets, tuples, infinity, division by zero.
 */
export function evaluate(node: Node, point: number, fuel: Fuel, inAngle = false): Complex | undefined {
  burn(fuel);
  const again = (inner: Node, angle = inAngle) => evaluate(inner, point, fuel, angle);
  switch (node.kind) {
    case "number":
      return complex.real(rational.toNumber(node.value));
    case "constant":
      if (node.name === "pi") return complex.real(Math.PI);
      if (node.name === "e") return complex.real(Math.E);
      return node.name === "i" ? complex.imaginaryUnit : undefined;
    case "name":
      return valueOfName(node.name, point);
    case "text":
      return valueOfName(`text ${node.text}`, point);
    case "unit":
      return again(node.of);
    case "negative": {
      const of = again(node.of);
      return of && { re: -of.re, im: -of.im };
    }
    case "percent": {
      const of = again(node.of);
      return of && complex.multiply(of, complex.real(0.01));
    }
    case "degrees": {
      const of = again(node.of);
      return of && (inAngle ? complex.multiply(of, complex.real(Math.PI / 180)) : of);
    }
    case "sum":
    case "product": {
      let total = complex.real(node.kind === "sum" ? 0 : 1);
      for (const item of node.items) {
        const value = again(item);
        if (value === undefined) return undefined;
        total = node.kind === "sum" ? complex.add(total, value) : complex.multiply(total, value);
      }
      return total;
    }
    case "quotient": {
      const left = again(node.left);
      const right = left && again(node.right);
      return left && right && finite(complex.divide(left, right));
    }
    case "power": {
      const left = again(node.left);
      const right = left && again(node.right);
      return left && right && finite(complex.power(left, right));
    }
    case "root": {
      const left = again(node.left);
      const right = left && again(node.right);
      return left && right && finite(complex.root(left, right));
    }
    case "factorial": {
      const value = exact(node, fuel);
      if (value !== undefined) return finite(complex.real(rational.toNumber(value)));
      return opaque("factorial", [node.of], point, fuel);
    }
    case "call":
      return call(node.name, node.arguments, point, fuel, inAngle);
    case "tuple":
    case "list":
    case "set":
    case "union":
    case "ratio":
    case "matrix":
    case "relation":
    case "based":
    case "plusMinus":
      return undefined;
  }
}

const angular = /^(?:sin|cos|tan|cot|sec|csc)$/;

function call(
  name: string,
  parameters: readonly Node[],
  point: number,
  fuel: Fuel,
  inAngle: boolean,
): Complex | undefined {
  const { real, divide } = complex;
  const values: Complex[] = [];
  for (const parameter of parameters) {
    const value = evaluate(parameter, point, fuel, inAngle || angular.test(name));
    if (value === undefined) return undefined;
    values.push(value);
  }
  const [x, second] = values;
  if (x === undefined) return undefined;
  switch (name) {
    case "sin":
      return finite(complex.sin(x));
    case "cos":
      return finite(complex.cos(x));
    case "tan":
      return finite(complex.tan(x));
    case "cot":
      return finite(divide(complex.cos(x), complex.sin(x)));
    case "sec":
      return finite(divide(real(1), complex.cos(x)));
    case "csc":
      return finite(divide(real(1), complex.sin(x)));
    case "arcsin":
      return finite(complex.arcsin(x));
    case "arccos":
      return finite(complex.arccos(x));
    case "arctan":
      return finite(complex.arctan(x));
    case "sinh":
      return finite(complex.sinh(x));
    case "cosh":
      return finite(complex.cosh(x));
    case "ln":
      return finite(complex.log(x));
    case "log":
    case "lg":
      // Without a base: the decimal logarithm.
      return finite(divide(complex.log(x), second === undefined ? real(Math.LN10) : complex.log(second)));
    case "exp":
      return finite(complex.exp(x));
    case "abs":
      return real(complex.magnitude(x));
    case "floor":
      return x.im === 0 ? real(Math.floor(x.re + 1e-12)) : undefined;
    case "ceil":
      return x.im === 0 ? real(Math.ceil(x.re - 1e-12)) : undefined;
    case "max":
    case "min":
      if (values.some((value) => value.im !== 0)) return undefined;
      return real((name === "max" ? Math.max : Math.min)(...values.map((value) => value.re)));
    case "binomial": {
      const whole = exactCall(name, parameters, fuel);
      return whole === undefined ? opaqueOf(name, values, point) : real(rational.toNumber(whole));
    }
    default:
      return opaqueOf(name, values, point);
  }
}

function opaque(name: string, parameters: readonly Node[], point: number, fuel: Fuel): Complex | undefined {
  const values: Complex[] = [];
  for (const parameter of parameters) {
    const value = evaluate(parameter, point, fuel);
    if (value === undefined) return undefined;
    values.push(value);
  }
  return opaqueOf(name, values, point);
}

/** A function nothing is known about: the same value for the same arguments, whatever way they are written. */
function opaqueOf(name: string, values: readonly Complex[], point: number): Complex {
  return valueOfName(
    `${name}(${values.map((v) => `${v.re.toPrecision(9)},${v.im.toPrecision(9)}`).join(";")})`,
    point,
  );
}

function valueOfName(name: string, point: number): Complex {
  let hash = 0x811c9dc5 ^ (point * 0x9e3779b1);
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  const first = scramble(hash);
  const size = 0.4 + 2.2 * (first / 2 ** 32);
  switch (point) {
    case 0:
      return complex.real(size);
    case 1:
      return complex.real(scramble(first) % 2 === 0 ? size : -size);
    case 2:
      return complex.real(-size);
    default:
      return { re: size, im: 0.3 + scramble(first ^ 0x5bd1e995) / 2 ** 32 };
  }
}

function scramble(value: number): number {
  let x = value >>> 0;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return (x ^ (x >>> 16)) >>> 0;
}

function finite(value: Complex): Complex | undefined {
  return Number.isFinite(value.re) && Number.isFinite(value.im) ? value : undefined;
}
