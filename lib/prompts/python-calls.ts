/**
 * Calls like Python's, `name(key="value", other=[1, 2])`, one a line: the chat template of OLMo 3
 * writes them between `<function_calls>` tags, with values as JSON; Ollama writes them in
 * model/renderers/olmo3.go, and vLLM reads them in tool_parsers/olmo3_tool_parser.py. Values may
 * also be Python's literals.
 */

import { Cursor } from "./cursor.ts";
import { literalAt } from "./literals.ts";
import { type FoundCall, malformed, type Parsed } from "./parsing.ts";

/** Deepest nesting of a value. */
const maxDepth = 64;
const escapes: Readonly<Record<string, string>> = { n: "\n", t: "\t", r: "\r", b: "\b", f: "\f", "0": "\0" };

/** The calls after an opening tag, up to the end of the turn. */
export function pythonCalls(text: string): Parsed<{ calls: FoundCall[] }> {
  const cursor = new Cursor(text);
  const calls: FoundCall[] = [];
  while (cursor.take(/\s*<\/function_calls>/y) === undefined) {
    const name = cursor.take(/\s*([\w./-]+)\(\s*/y)?.[1];
    if (name === undefined)
      return malformed("calls must be written name(key=value), and end with </function_calls>");
    const members = new Map<string, string>();
    while (cursor.take(/\)/y) === undefined) {
      const key = cursor.take(/([^\s=(),"'[\]{}]+)\s*=\s*/y)?.[1];
      const value = key === undefined ? undefined : valueAt(cursor, 0);
      if (key === undefined || value === undefined)
        return malformed(`the arguments of ${name} must be written key=value, with values as JSON`);
      if (members.has(key)) return malformed(`the parameter ${JSON.stringify(key)} occurs twice`);
      members.set(key, value);
      if (cursor.take(/\s*,\s*|\s*(?=\))/y) === undefined)
        return malformed(`the arguments of ${name} must end with )`);
    }
    const given = [...members].map(([key, value]) => `${JSON.stringify(key)}: ${value}`).join(", ");
    const json = `{"name": ${JSON.stringify(name)}, "arguments": {${given}}}`;
    calls.push({ json, keys: ["arguments"] });
  }
  if (calls.length === 0) return malformed("there is no call between <function_calls> and </function_calls>");
  return text.slice(cursor.at).trim() === ""
    ? { ok: true, calls }
    : malformed("nothing may stand after a call");
}

/** The literal at the cursor as JSON; undefined if there is none. */
function valueAt(cursor: Cursor, depth: number): string | undefined {
  if (depth > maxDepth) return undefined;
  const string = cursor.take(/"(?:[^"\\\n]|\\[\s\S])*"|'(?:[^'\\\n]|\\[\s\S])*'/y)?.[0];
  if (string !== undefined) return stringJson(string);
  const bracket = cursor.take(/[[{]\s*/y)?.[0]?.[0];
  if (bracket === undefined) return literalAt(cursor);
  const close = bracket === "[" ? /\s*\]/y : /\s*\}/y;
  const items: string[] = [];
  while (cursor.take(close) === undefined) {
    if (items.length > 0 && cursor.take(/\s*,\s*/y) === undefined) return undefined;
    const key = bracket === "{" ? valueAt(cursor, depth + 1) : undefined;
    if (bracket === "{" && (!key?.startsWith('"') || cursor.take(/\s*:\s*/y) === undefined)) return undefined;
    const value = valueAt(cursor, depth + 1);
    if (value === undefined) return undefined;
    items.push(key === undefined ? value : `${key}: ${value}`);
  }
  return bracket === "[" ? `[${items.join(", ")}]` : `{${items.join(", ")}}`;
}

/** A string literal as JSON. A double-quoted one that is JSON keeps its spelling. */
function stringJson(literal: string): string {
  if (literal.startsWith('"')) {
    try {
      JSON.parse(literal);
      return literal;
    } catch {
      // Not JSON: it has Python's escapes.
    }
  }
  const text = literal
    .slice(1, -1)
    .replace(/\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([\s\S]))/g, (_, unit, byte, char: string) =>
      char === undefined
        ? String.fromCharCode(Number.parseInt((unit ?? byte) as string, 16))
        : (escapes[char] ?? char),
    );
  return JSON.stringify(text);
}
