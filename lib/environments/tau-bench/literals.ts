/**
 * Parses literals in Python source: strings, numbers, True, False, None, lists, dicts, and calls of
 * allowed names with keyword arguments only, which are parsed as dicts. Nothing is executed, and
 * any other syntax is rejected.
 */

import { NlacError } from "../../base/errors.ts";
import type { Dict, Value } from "./values.ts";

const blank = /(?:[ \t\r\n\f]|\\\r?\n|#[^\n]*)*/y;
const number = /-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?![\w.])/y;
const word = /[A-Za-z_]\w*/y;
const quote = /"""|'''|"|'/y;

const constants: ReadonlyMap<string, Value> = new Map([
  ["True", true],
  ["False", false],
  ["None", null],
]);

const escapes: ReadonlyMap<string, string> = new Map([
  ["\n", ""],
  ["\\", "\\"],
  ["'", "'"],
  ['"', '"'],
  ["n", "\n"],
  ["r", "\r"],
  ["t", "\t"],
]);

/** Number of hexadecimal digits of each escape. */
const escapeDigits: ReadonlyMap<string, number> = new Map([
  ["x", 2],
  ["u", 4],
  ["U", 8],
]);

/**
 * Parses the literal that begins in `source` at the end of the first match of `from`.
 *
 * @param constructors names whose calls are parsed as dicts of their arguments
 * @param file for messages
 * @throws NlacError ERR_CONFIG that names the file and the line
 */
export function readLiteral(
  source: string,
  from: RegExp,
  file: string,
  constructors: readonly string[] = [],
): Value {
  const start = from.exec(source);
  if (start === null) throw new NlacError("ERR_CONFIG", `${file} has no ${from.source}.`);
  let at = start.index + start[0].length;

  const fail = (what: string): never => {
    const line = source.slice(0, at).split("\n").length;
    throw new NlacError("ERR_CONFIG", `${file}:${line}: ${what}.`);
  };
  const take = (pattern: RegExp): string | undefined => {
    pattern.lastIndex = at;
    const found = pattern.exec(source)?.[0];
    at += found?.length ?? 0;
    return found;
  };
  const skip = (character: string): boolean => {
    take(blank);
    if (source[at] !== character) return false;
    at++;
    return true;
  };
  const need = (character: string): void => {
    if (!skip(character)) fail(`"${character}" is missing`);
  };
  /** Parses the items after an open bracket, separated by commas; a trailing comma is allowed. */
  const items = (close: string, item: () => void): void => {
    while (!skip(close)) {
      item();
      if (skip(",")) continue;
      need(close);
      return;
    }
  };
  const escaped = (): string => {
    const character = source[at++] ?? "";
    const plain = escapes.get(character);
    if (plain !== undefined) return plain;
    const hex = source.slice(at, at + (escapeDigits.get(character) ?? 0));
    const code = /^[\da-fA-F]+$/.test(hex) ? Number.parseInt(hex, 16) : Number.NaN;
    if (hex.length !== escapeDigits.get(character) || !(code <= 0x10ffff)) {
      return fail(`the escape \\${character} cannot be read`);
    }
    at += hex.length;
    return String.fromCodePoint(code);
  };
  const text = (mark: string): string => {
    let read = "";
    while (!source.startsWith(mark, at)) {
      const character = source[at++];
      if (character === undefined || (character === "\n" && mark.length === 1)) fail("a text does not end");
      read += character === "\\" ? escaped() : character;
    }
    at += mark.length;
    return read;
  };
  const named = (): Value => {
    const name = take(word);
    if (name === undefined) return fail("this is not a literal");
    const constant = constants.get(name);
    if (constant !== undefined) return constant;
    if (!constructors.includes(name)) return fail(`"${name}" is not a literal`);
    need("(");
    const fields: Dict = new Map();
    items(")", () => {
      take(blank);
      const key = take(word) ?? fail("an argument needs a name");
      need("=");
      fields.set(key, value());
    });
    return fields;
  };
  const value = (): Value => {
    take(blank);
    if (skip("[")) {
      const list: Value[] = [];
      items("]", () => list.push(value()));
      return list;
    }
    if (skip("{")) {
      const dict: Dict = new Map();
      items("}", () => {
        const key = value();
        if (typeof key !== "string") fail("a key must be a text");
        need(":");
        dict.set(key as string, value());
      });
      return dict;
    }
    if (skip("(")) {
      const inner = value();
      need(")");
      return inner;
    }
    const numeral = take(number);
    if (numeral !== undefined) return /[.eE]/.test(numeral) ? Number(numeral) : BigInt(numeral);
    let mark = take(quote);
    if (mark === undefined) return named();
    let joined = "";
    // Adjacent strings are concatenated.
    for (; mark !== undefined; mark = take(quote)) {
      joined += text(mark);
      take(blank);
    }
    return joined;
  };
  return value();
}
