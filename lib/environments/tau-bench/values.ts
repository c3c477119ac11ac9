/**
 * Values as in tau-bench's Python. An int is a bigint and a float a number, so that 54 and 54.0
 * stay distinct. A dict is a Map, since an object would reorder keys such as "10" before "9".
 */

export type Dict = Map<string, Value>;
export type Value = null | boolean | bigint | number | string | Value[] | Dict;

/** Deepest nesting; deeper values are rejected, as by Python's recursion limit. */
const maxDepth = 500;
const tooDeep = "maximum recursion depth exceeded";

const space = /[ \t\n\r]*/y;
// Control characters, which JSON forbids, are left to JSON.parse, which reports them.
const plainText = /[ !#-[\]-\uffff]*"/y;
const otherText = /(?:[^"\\]|\\.)*"/y;
const numeral = /-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/y;
const literals: readonly [string, Value][] = [
  ["true", true],
  ["false", false],
  ["null", null],
];

/**
 * Parses JSON, preserving how numbers are written. Throws SyntaxError, and RangeError for too deep
 * a nesting.
 */
export function parseJson(text: string): Value {
  let at = 0;
  const fail = (): never => {
    throw new SyntaxError(`not JSON at position ${at}`);
  };
  const match = (pattern: RegExp): RegExpExecArray | null => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found !== null) at += found[0].length;
    return found;
  };
  const skip = (character: string): boolean => {
    match(space);
    if (text[at] !== character) return false;
    at++;
    return true;
  };
  const string = (): string => {
    const start = at;
    if (match(plainText) !== null) return text.slice(start, at - 1);
    if (match(otherText) === null) fail();
    try {
      return JSON.parse(text.slice(start - 1, at)) as string;
    } catch {
      at = start;
      return fail();
    }
  };
  const value = (depth: number): Value => {
    if (depth > maxDepth) throw new RangeError(tooDeep);
    if (skip("{")) {
      const dict: Dict = new Map();
      if (skip("}")) return dict;
      do {
        if (!skip('"')) fail();
        const key = string();
        if (!skip(":")) fail();
        dict.set(key, value(depth + 1));
      } while (skip(","));
      return skip("}") ? dict : fail();
    }
    if (skip("[")) {
      const list: Value[] = [];
      if (skip("]")) return list;
      do list.push(value(depth + 1));
      while (skip(","));
      return skip("]") ? list : fail();
    }
    if (skip('"')) return string();
    for (const [name, meaning] of literals) {
      if (!text.startsWith(name, at)) continue;
      at += name.length;
      return meaning;
    }
    const number = match(numeral);
    if (number === null) return fail();
    return number[1] === undefined && number[2] === undefined ? BigInt(number[0]) : Number(number[0]);
  };
  const result = value(0);
  match(space);
  return at === text.length ? result : fail();
}

/**
 * Converts a JavaScript value as JSON would serialize it: whole numbers become ints (from 1e21 on,
 * JSON has an exponent, which makes a float), and values that JSON omits are omitted. Throws
 * RangeError for too deep or cyclic values.
 */
export function fromJavaScript(value: unknown, depth = 0): Value {
  if (depth > maxDepth) throw new RangeError(tooDeep);
  switch (typeof value) {
    case "boolean":
    case "bigint":
    case "string":
      return value;
    case "number":
      return Number.isInteger(value) && Math.abs(value) < 1e21 ? BigInt(value) : value;
    case "object": {
      if (value === null) return null;
      if (Array.isArray(value)) return Array.from(value, (item: unknown) => fromJavaScript(item, depth + 1));
      const dict: Dict = new Map();
      for (const [key, inner] of Object.entries(value)) {
        if (inner !== undefined) dict.set(key, fromJavaScript(inner, depth + 1));
      }
      return dict;
    }
    default:
      return null;
  }
}

/** A deep copy. */
export function copyOf<T extends Value>(value: T): T;
export function copyOf(value: Value): Value {
  if (Array.isArray(value)) return value.map(copyOf);
  if (!(value instanceof Map)) return value;
  const copy: Dict = new Map();
  for (const [key, inner] of value) copy.set(key, copyOf(inner));
  return copy;
}
