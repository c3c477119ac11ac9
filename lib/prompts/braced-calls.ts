/**
 * Calls as the chat template of Gemma 4 writes them, `<|tool_call>call:NAME{key:value,…}<tool_call|>`,
 * one after another. A mark stands on both sides of every string, so a string cannot contain it; keys
 * have no quotes. vLLM reads them in tool_parsers/gemma4_tool_parser.py.
 */

import { Cursor } from "./cursor.ts";
import { literalAt } from "./literals.ts";
import { type FoundCall, malformed, type Parsed } from "./parsing.ts";

export const bracedOpening = "<|tool_call>";
const bracedClosing = "<tool_call|>";
/** Stands on both sides of a string. */
const stringMark = '<|"|>';

/** Deepest nesting of a value. */
const maxDepth = 64;

/** The calls from the first mark up to the end of the turn. */
export function bracedCalls(text: string): Parsed<{ calls: FoundCall[] }> {
  const cursor = new Cursor(text);
  const calls: FoundCall[] = [];
  while (cursor.take(/\s*<\|tool_call>/y) !== undefined) {
    const name = cursor.take(/\s*call:\s*([\w./-]+)\s*(?=\{)/y)?.[1];
    if (name === undefined) return malformed(`${bracedOpening} must be followed by call:NAME{key:value}`);
    const args = valueAt(cursor, 0);
    if (args === undefined)
      return malformed(`the arguments of ${name} must be written {key:value}, with strings in ${stringMark}`);
    if (cursor.take(/\s*<tool_call\|>/y) === undefined)
      return malformed(`a call must end with ${bracedClosing}`);
    calls.push({ json: `{"name": ${JSON.stringify(name)}, "arguments": ${args}}`, keys: ["arguments"] });
  }
  return cursor.take(/\s*$/y) === undefined
    ? malformed("nothing may stand after a call")
    : { ok: true, calls };
}

/** The value at the cursor as JSON; undefined if there is none. */
function valueAt(cursor: Cursor, depth: number): string | undefined {
  if (depth > maxDepth) return undefined;
  cursor.take(/\s*/y);
  const string = stringAt(cursor);
  if (string !== undefined) return JSON.stringify(string);
  const bracket = cursor.take(/[[{]/y)?.[0];
  if (bracket === undefined) return literalAt(cursor);
  const close = bracket === "[" ? /\s*\]/y : /\s*\}/y;
  const items: string[] = [];
  const keys = new Set<string>();
  while (cursor.take(close) === undefined) {
    if (items.length > 0 && cursor.take(/\s*,/y) === undefined) return undefined;
    const key = bracket === "{" ? keyAt(cursor) : undefined;
    // As in JSON, the last one of a repeated key counts inside of a value.
    if (bracket === "{" && (key === undefined || (depth === 0 && keys.has(key)))) return undefined;
    const value = valueAt(cursor, depth + 1);
    if (value === undefined) return undefined;
    if (key !== undefined) keys.add(key);
    items.push(key === undefined ? value : `${JSON.stringify(key)}: ${value}`);
  }
  return bracket === "[" ? `[${items.join(", ")}]` : `{${items.join(", ")}}`;
}

/** The key at the cursor and its colon; a model may also mark it as a string. */
function keyAt(cursor: Cursor): string | undefined {
  cursor.take(/\s*/y);
  const key = stringAt(cursor) ?? cursor.take(/[^:,{}[\]<>"]*(?=:)/y)?.[0].trimEnd();
  return cursor.take(/\s*:/y) === undefined ? undefined : key;
}

function stringAt(cursor: Cursor): string | undefined {
  if (!cursor.text.startsWith(stringMark, cursor.at)) return undefined;
  const start = cursor.at + stringMark.length;
  const end = cursor.text.indexOf(stringMark, start);
  if (end < 0) return undefined;
  cursor.at = end + stringMark.length;
  return cursor.text.slice(start, end);
}
