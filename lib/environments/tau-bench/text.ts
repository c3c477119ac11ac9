/**
 * Formats values as text: like Python's `str`, `repr` and `json.dumps`, and in the two forms that
 * are hashed.
 */

import { compareText, pythonFloat, pythonJsonString, pythonString } from "../../base/python-text.ts";
import type { Value } from "./values.ts";

/** `str(value)`. */
export function str(value: Value): string {
  return typeof value === "string" ? value : repr(value);
}

/** `repr(value)`. */
export function repr(value: Value): string {
  if (Array.isArray(value)) return `[${value.map(repr).join(", ")}]`;
  if (value instanceof Map) {
    return `{${Array.from(value, ([key, inner]) => `${pythonString(key)}: ${repr(inner)}`).join(", ")}}`;
  }
  return atomRepr(value);
}

/** A text format to hash. Both formats sort a dict's pairs by key. */
export interface HashedForm {
  atom(value: null | boolean | bigint | number | string): string;
  list: Brackets;
  dict: Brackets;
  /** Text before and after the value of the pair of `key`. */
  entry(key: string): readonly [before: string, after: string];
}

interface Brackets {
  open: string;
  separator: string;
  /** The closing text, given the number of items. */
  close(items: number): string;
}

const tuple: Brackets = { open: "(", separator: ", ", close: (items) => (items === 1 ? ",)" : ")") };

/**
 * The format that tau-bench itself hashes: `str` of nested tuples, where a dict is the tuple of its
 * pairs.
 */
export const referenceForm: HashedForm = {
  atom: atomRepr,
  list: tuple,
  dict: tuple,
  entry: (key) => [`(${pythonString(key)}, `, ")"],
};

/** JSON with sorted keys, without spaces, numbers formatted as in ECMAScript. */
export const canonicalForm: HashedForm = {
  atom: (value) => JSON.stringify(typeof value === "bigint" ? Number(value) : value),
  list: { open: "[", separator: ",", close: () => "]" },
  dict: { open: "{", separator: ",", close: () => "}" },
  entry: (key) => [`${JSON.stringify(key)}:`, ""],
};

export function hashedText(value: Value, form: HashedForm): string {
  const write = (inner: Value): string => {
    if (Array.isArray(inner)) return enclose(inner.map(write), form.list);
    if (inner instanceof Map) {
      const keys = [...inner.keys()].sort(compareText);
      return enclose(
        keys.map((key) => form.entry(key).join(write(inner.get(key)!))),
        form.dict,
      );
    }
    return form.atom(inner);
  };
  return write(value);
}

export function enclose(items: readonly string[], { open, separator, close }: Brackets): string {
  return open + items.join(separator) + close(items.length);
}

/** `json.dumps(value)` with its defaults. */
export function dumps(value: Value): string {
  if (typeof value === "string") return pythonJsonString(value);
  if (Array.isArray(value)) return `[${value.map(dumps).join(", ")}]`;
  if (value instanceof Map) {
    return `{${Array.from(value, ([key, inner]) => `${pythonJsonString(key)}: ${dumps(inner)}`).join(", ")}}`;
  }
  return typeof value === "number" && Number.isFinite(value) ? pythonFloat(value) : String(value);
}

function atomRepr(value: null | boolean | bigint | number | string): string {
  switch (typeof value) {
    case "string":
      return pythonString(value);
    case "number":
      return pythonFloat(value);
    case "bigint":
      return String(value);
    case "boolean":
      return value ? "True" : "False";
    default:
      return "None";
  }
}
