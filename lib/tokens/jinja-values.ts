/** The values of a chat template as Python prints them; the interpreter prints most as JavaScript does. */

import { compareText, pythonFloat, pythonJsonString, pythonString } from "../base/python-text.ts";

/** A value of the interpreter. */
export interface Evaluated {
  type: string;
  value: unknown;
}

/** A value as Python's `str` prints it. */
export function pythonText({ type, value }: Evaluated): string {
  if (type === "StringValue") return value as string;
  return type === "UndefinedValue" ? "" : pythonRepr({ type, value });
}

function pythonRepr({ type, value }: Evaluated): string {
  switch (type) {
    case "NullValue":
    case "UndefinedValue":
      return "None";
    case "BooleanValue":
      return value === true ? "True" : "False";
    case "IntegerValue":
      return pythonInteger(value as number);
    case "FloatValue":
      return pythonFloat(value as number);
    case "StringValue":
      return pythonString(value as string, marksOfText);
    case "ArrayValue":
    case "TupleValue": {
      const items = (value as Evaluated[]).map(pythonRepr).join(", ");
      return type === "ArrayValue" ? `[${items}]` : `(${items})`;
    }
    case "ObjectValue": {
      const members = [...(value as Map<string, Evaluated>)];
      return `{${members.map(([key, inner]) => `${pythonString(key, marksOfText)}: ${pythonRepr(inner)}`).join(", ")}}`;
    }
    default:
      return String(value);
  }
}

/** The marks of trusted text are such characters, which Python escapes: they stay. */
const marksOfText = /[\p{Co}\p{Cn}]/u;

/**
 * A number without a fraction, as an integer: JavaScript does not know whether JSON had 1 or 1.0. As a
 * float are written -0, which is no integer in Python, and numbers from 1e21 on, for which JavaScript
 * writes exponents.
 */
function pythonInteger(value: number): string {
  return Math.abs(value) < 1e21 && !Object.is(value, -0) ? BigInt(value).toString() : pythonFloat(value);
}

/** Types that compare as numbers. */
const numbers: ReadonlySet<string> = new Set(["BooleanValue", "IntegerValue", "FloatValue"]);

/** Whether values are equal in Python: by content, and an undefined value is not None. */
export function pythonEquals(a: Evaluated, b: Evaluated): boolean {
  if (numbers.has(a.type) && numbers.has(b.type)) return Number(a.value) === Number(b.value);
  if (a.type !== b.type) return false;
  if (a.type === "ArrayValue" || a.type === "TupleValue") {
    const [items, others] = [a.value, b.value] as Evaluated[][];
    return items!.length === others!.length && items!.every((item, i) => pythonEquals(item, others![i]!));
  }
  if (a.type !== "ObjectValue") return a.value === b.value;
  const [members, others] = [a.value, b.value] as Map<string, Evaluated>[];
  if (members!.size !== others!.size) return false;
  return [...members!].every(([key, value]) => {
    const other = others!.get(key);
    return other !== undefined && pythonEquals(value, other);
  });
}

/** Whether Python takes a value for true. */
export function isTrue({ type, value }: Evaluated): boolean {
  if (type === "UndefinedValue" || type === "NullValue") return false;
  if (value instanceof Map) return value.size > 0;
  return Array.isArray(value) ? value.length > 0 : Boolean(value);
}

/** Below 0 if `a` comes first: numbers by value, texts without case. Throws for other values. */
export function pythonOrder(a: Evaluated, b: Evaluated): number {
  if (numbers.has(a.type) && numbers.has(b.type)) return Number(a.value) - Number(b.value);
  if (a.type !== "StringValue" || b.type !== "StringValue")
    throw new Error(`${a.type} and ${b.type} have no order`);
  return compareText((a.value as string).toLowerCase(), (b.value as string).toLowerCase());
}

/** As Jinja's filter `int`; undefined for what is no number. */
export function pythonInt({ type, value }: Evaluated): number | undefined {
  if (numbers.has(type)) return Math.trunc(Number(value)) + 0;
  if (type !== "StringValue") return undefined;
  const text = (value as string).trim().replaceAll(/(?<=\d)_(?=\d)/g, "");
  return /^[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i.test(text) ? Math.trunc(Number(text)) + 0 : undefined;
}

/** Which ends of a text are stripped. */
export type Ends = "both" | "left" | "right";

/** White space in Python: other than in JavaScript, U+FEFF is none, and some control characters are. */
export const pythonSpaces =
  "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a" +
  "\u2028\u2029\u202f\u205f\u3000";

/** Without leading or trailing characters that are among `characters`, as Python's `str.strip`. */
export function strip(text: string, characters: string, ends: Ends): string {
  const removed = new Set(characters);
  const kept = Array.from(text);
  let [start, end] = [0, kept.length];
  if (ends !== "right") while (start < end && removed.has(kept[start]!)) start++;
  if (ends !== "left") while (end > start && removed.has(kept[end - 1]!)) end--;
  return kept.slice(start, end).join("");
}

/** The items as the filter `join` prints them. */
export function joined(
  items: readonly Evaluated[],
  separator: Evaluated | undefined,
  attribute: Evaluated | undefined,
): string {
  const texts = items.map((item) => {
    if (attribute === undefined) return pythonText(item);
    const member = item.value instanceof Map ? item.value.get(attribute.value) : undefined;
    return member === undefined ? "" : pythonText(member as Evaluated);
  });
  return texts.join(separator === undefined ? "" : pythonText(separator));
}

/** The least or largest item, of equal ones the first. Texts compare without case. */
export function extreme(items: readonly Evaluated[], which: "min" | "max"): Evaluated | undefined {
  return items.reduce<Evaluated | undefined>((best, item) => {
    if (best === undefined) return item;
    const order = pythonOrder(item, best);
    return (which === "min" ? order < 0 : order > 0) ? item : best;
  }, undefined);
}

/** The values of a format: by place and by name. */
export type FormatValues = readonly [positional: readonly Evaluated[], named: ReadonlyMap<string, Evaluated>];

/** As Python's `format % values`, for the conversions s, r, d, i and f. `printed` is told each text. */
export function percentFormatted(
  format: string,
  [positional, named]: FormatValues,
  printed: (text: string) => string,
): string {
  let used = 0;
  const text = format.replace(/%(?:\((\w+)\))?(?:\.(\d+))?(.?)/gs, (whole, name, digits, conversion) => {
    if (whole === "%%") return "%";
    const value = name === undefined ? positional[used++] : named.get(name);
    if (value === undefined) throw new Error(`there is no value for ${JSON.stringify(whole)}`);
    if (conversion === "s" && digits === undefined) return printed(pythonText(value));
    if (conversion === "r" && digits === undefined) return printed(pythonRepr(value));
    if (numbers.has(value.type)) {
      if ((conversion === "d" || conversion === "i") && digits === undefined)
        return pythonInteger(Math.trunc(Number(value.value)) + 0);
      if (conversion === "f" && Number(digits ?? 6) <= 100)
        return Number(value.value).toFixed(Number(digits ?? 6));
    }
    throw new Error(`${value.type} cannot be formatted as ${JSON.stringify(whole)}`);
  });
  if (used < positional.length) throw new Error("not all values are formatted");
  return text;
}

/** As Python's `str.format`, for fields without conversions and attributes. */
export function bracesFormatted(
  format: string,
  [positional, named]: FormatValues,
  printed: (text: string) => string,
): string {
  let next = 0;
  return format.replace(/\{\{|\}\}|\{([^{}]*)\}|[{}]/g, (whole, field: string | undefined) => {
    if (whole === "{{" || whole === "}}") return whole[0]!;
    if (field === undefined || !/^\w*$/.test(field))
      throw new Error(`${JSON.stringify(whole)} is no field of a format`);
    const value = /^\d*$/.test(field) ? positional[field === "" ? next++ : Number(field)] : named.get(field);
    if (value === undefined) throw new Error(`there is no value for ${JSON.stringify(whole)}`);
    return printed(pythonText(value));
  });
}

/** As Python's `markupsafe.escape`. */
export function escapedHtml(text: string): string {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll("'", "&#39;")
    .replaceAll('"', "&#34;");
}

/** As Python's `str.capitalize`. */
export function capitalized(text: string): string {
  const [first = "", ...rest] = text;
  return first.toUpperCase() + rest.join("").toLowerCase();
}

/** As Python's `str.title`: a word is a run of letters. */
export function titled(text: string): string {
  return text.replace(/\p{Cased}[\p{Cased}\p{M}]*/gu, capitalized);
}

/** As Jinja's filter `title`: words end at spaces, hyphens and opening brackets. */
export function titledWords(text: string): string {
  return text.replace(/[^-\s({[<]+/g, capitalized);
}

/** Options of `tojson`, with the defaults of Python's `json.dumps` as transformers calls it. */
export interface JsonOptions {
  ensureAscii: boolean;
  /** Spaces of one level; undefined: on one line. */
  indent: number | undefined;
  separators: readonly [item: string, key: string] | undefined;
  sortKeys: boolean;
}

/** A value as Python's `json.dumps` writes it; undefined values as null. Throws for macros. */
export function pythonJson({ type, value }: Evaluated, options: JsonOptions, depth = 0): string {
  const { ensureAscii, indent, separators, sortKeys } = options;
  const [itemSeparator, keySeparator] = separators ?? [indent === undefined ? ", " : ",", ": "];
  const line = (levels: number) => (indent === undefined ? "" : `\n${" ".repeat(indent * levels)}`);
  const inside = (open: string, items: readonly string[], close: string) =>
    items.length === 0
      ? open + close
      : open + line(depth + 1) + items.join(itemSeparator + line(depth + 1)) + line(depth) + close;
  const string = (text: string) => (ensureAscii ? pythonJsonString(text) : JSON.stringify(text));
  switch (type) {
    case "NullValue":
    case "UndefinedValue":
      return "null";
    case "BooleanValue":
      return String(value);
    case "IntegerValue":
      return pythonInteger(value as number);
    case "FloatValue":
      return Number.isFinite(value) ? pythonFloat(value as number) : String(value);
    case "StringValue":
      return string(value as string);
    case "ArrayValue":
    case "TupleValue": {
      const items = (value as Evaluated[]).map((item) => pythonJson(item, options, depth + 1));
      return inside("[", items, "]");
    }
    case "NamespaceValue":
    case "ObjectValue": {
      const members = [...(value as Map<string, Evaluated>)];
      if (sortKeys) members.sort(([a], [b]) => compareText(a, b));
      const written = members.map(
        ([key, inner]) => string(key) + keySeparator + pythonJson(inner, options, depth + 1),
      );
      return inside("{", written, "}");
    }
    default:
      throw new Error(`${type} cannot be written as JSON`);
  }
}
