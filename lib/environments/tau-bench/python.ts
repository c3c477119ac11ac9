/**
 * Python's operators on values, with its exceptions, since the tools' behaviour includes arguments
 * of the wrong type.
 */

import { compareText } from "../../base/python-text.ts";
import { repr } from "./text.ts";
import type { Dict, Value } from "./values.ts";

/** A Python exception; its message is `str` of Python's own. */
export class PythonError extends Error {}

function fail(message: string): never {
  throw new PythonError(message);
}

export function typeName(value: Value): string {
  if (value === null) return "NoneType";
  if (Array.isArray(value)) return "list";
  if (value instanceof Map) return "dict";
  return { bigint: "int", number: "float", boolean: "bool", string: "str" }[
    typeof value as "bigint" | "number" | "boolean" | "string"
  ];
}

/** `value` as a number if Python treats it as one: True is 1. */
function numberOf(value: Value): bigint | number | undefined {
  if (typeof value === "boolean") return value ? 1n : 0n;
  return typeof value === "bigint" || typeof value === "number" ? value : undefined;
}

export function toFloat(value: bigint | number): number {
  const float = Number(value);
  if (typeof value === "bigint" && !Number.isFinite(float)) fail("int too large to convert to float");
  return float;
}

type Arithmetic = { ints(a: bigint, b: bigint): bigint; floats(a: number, b: number): number };

function arithmetic(a: Value, b: Value, { ints, floats }: Arithmetic): bigint | number | undefined {
  const x = numberOf(a);
  const y = numberOf(b);
  if (x === undefined || y === undefined) return undefined;
  return typeof x === "bigint" && typeof y === "bigint" ? ints(x, y) : floats(toFloat(x), toFloat(y));
}

function unsupported(operator: string, a: Value, b: Value): never {
  return fail(`unsupported operand type(s) for ${operator}: '${typeName(a)}' and '${typeName(b)}'`);
}

/** `a + b`, numbers only; `operator` is the one in the source, for error messages. */
export function add(a: Value, b: Value, operator = "+"): bigint | number {
  return arithmetic(a, b, { ints: (x, y) => x + y, floats: (x, y) => x + y }) ?? unsupported(operator, a, b);
}

/** `a - b`. */
export function subtract(a: Value, b: Value): bigint | number {
  return arithmetic(a, b, { ints: (x, y) => x - y, floats: (x, y) => x - y }) ?? unsupported("-", a, b);
}

/**
 * `a * b`, numbers only: no tool could use the repeated string or list that Python would return.
 */
export function multiply(a: Value, b: Value): bigint | number {
  return arithmetic(a, b, { ints: (x, y) => x * y, floats: (x, y) => x * y }) ?? unsupported("*", a, b);
}

/** `-value`. */
export function negative(value: Value): bigint | number {
  const number = numberOf(value);
  return number === undefined ? fail(`bad operand type for unary -: '${typeName(value)}'`) : -number;
}

/** `sum(values)`. */
export function sum(values: readonly Value[]): bigint | number {
  return values.reduce<bigint | number>((total, value) => add(total, value), 0n);
}

/** `round(value, 2)`: the exact binary value, ties to even. An int stays as it is. */
export function round2(value: bigint | number): bigint | number {
  if (typeof value === "bigint" || value === 0 || !Number.isFinite(value)) return value;
  const eighths = Math.abs(value) * 8;
  // A float is exactly half-way between two hundredths only if it is an odd number of eighths.
  if (Number.isInteger(eighths) && eighths % 2 === 1) {
    const below = (BigInt(eighths) * 25n) / 2n;
    const even = below % 2n === 0n ? below : below + 1n;
    return Math.sign(value) * Number(`${even}e-2`);
  }
  // Larger floats have no hundredths, and `toFixed` changes its format.
  return Math.abs(value) < 1e21 ? Number(value.toFixed(2)) : value;
}

/** `a == b`. */
export function equal(a: Value, b: Value): boolean {
  if (typeof a === "string") return a === b;
  const x = numberOf(a);
  const y = numberOf(b);
  // biome-ignore lint/suspicious/noDoubleEquals: compares an int and a float by their values
  if (x !== undefined && y !== undefined) return x == y;
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((item, i) => equal(item, b[i]!));
  }
  if (a instanceof Map && b instanceof Map) {
    return a.size === b.size && [...a].every(([key, item]) => b.has(key) && equal(item, b.get(key)!));
  }
  return a === b;
}

/** `a < b`. */
export function less(a: Value, b: Value): boolean {
  const x = numberOf(a);
  const y = numberOf(b);
  if (x !== undefined && y !== undefined) return x < y;
  if (typeof a === "string" && typeof b === "string") return compareText(a, b) < 0;
  if (Array.isArray(a) && Array.isArray(b)) {
    const i = a.findIndex((item, k) => k >= b.length || !equal(item, b[k]!));
    if (i < 0 || i >= b.length) return i < 0 && a.length < b.length;
    return less(a[i]!, b[i]!);
  }
  return fail(`'<' not supported between instances of '${typeName(a)}' and '${typeName(b)}'`);
}

/** `sorted(value)`. */
export function sorted(value: Value): Value[] {
  return iterate(value).sort((a, b) => (less(a, b) ? -1 : less(b, a) ? 1 : 0));
}

/** The items of `for … in value`: a list's items, a string's characters, a dict's keys. */
export function iterate(value: Value): Value[] {
  if (typeof value === "string" || Array.isArray(value)) return [...value];
  if (value instanceof Map) return [...value.keys()];
  return fail(`'${typeName(value)}' object is not iterable`);
}

/** `len(value)`. */
export function length(value: Value): number {
  if (typeof value === "string" || Array.isArray(value) || value instanceof Map) return iterate(value).length;
  return fail(`object of type '${typeName(value)}' has no len()`);
}

/** `value.count(item)`. */
export function count(value: Value, item: Value): number {
  if (Array.isArray(value)) return value.filter((other) => equal(other, item)).length;
  if (typeof value === "string" && typeof item === "string") return value.split(item).length - 1;
  return fail(`'${typeName(value)}' object has no attribute 'count'`);
}

/** `value.lower()`. */
export function lower(value: Value): string {
  if (typeof value === "string") return value.toLowerCase();
  return fail(`'${typeName(value)}' object has no attribute 'lower'`);
}

/** `key` as a key of a dict; undefined if no key can equal it. Throws for unhashable values. */
export function asKey(key: Value): string | undefined {
  if (Array.isArray(key) || key instanceof Map) fail(`unhashable type: '${typeName(key)}'`);
  return typeof key === "string" ? key : undefined;
}

/** `key in value`, for a dict. */
export function has(value: Value, key: Value): boolean {
  const name = asKey(key);
  return name !== undefined && dict(value).has(name);
}

/** `value[key]`, with `key` a string or an agent's argument. */
export function at(value: Value, key: Value): Value {
  if (value instanceof Map) {
    const name = asKey(key);
    const item = name === undefined ? undefined : value.get(name);
    return item === undefined ? fail(repr(key)) : item;
  }
  if (typeof value === "string") fail(`string indices must be integers, not '${typeName(key)}'`);
  if (Array.isArray(value)) fail(`list indices must be integers or slices, not ${typeName(key)}`);
  return fail(`'${typeName(value)}' object is not subscriptable`);
}

/** `value[0]`, for a list. */
export function first(value: Value): Value {
  return list(value)[0] ?? fail("list index out of range");
}

/** Asserts that `value` is a dict, as it is in valid data. */
export function dict(value: Value): Dict {
  return value instanceof Map ? value : fail(`a dict is needed, not '${typeName(value)}'`);
}

/** Asserts that `value` is a list, as it is in valid data. */
export function list(value: Value): Value[] {
  return Array.isArray(value) ? value : fail(`a list is needed, not '${typeName(value)}'`);
}

/** `int(text)`. */
export function parseInt10(text: string): bigint {
  const digits = /^\s*([+-]?)(\d+(?:_\d+)*)\s*$/.exec(text);
  if (digits === null) return fail(`invalid literal for int() with base 10: ${repr(text)}`);
  const magnitude = BigInt(digits[2]!.replaceAll("_", ""));
  return digits[1] === "-" ? -magnitude : magnitude;
}
