/**
 * Parses function calls: a JSON object with a name and arguments. Chat templates that support calls
 * differ in the markup around it and in the key of the arguments.
 */

import { NlacError } from "../base/errors.ts";
import { isObject } from "../base/validation.ts";
import type { Action, ToolSchema } from "../contract/environment.ts";
import { alone, type Grammar, grammarText } from "../model/grammar.ts";
import { malformed, type Parsed } from "./parsing.ts";

type Call = Required<Pick<Action, "text" | "tool">>;

/** Deepest nesting of a call; deeper ones are rejected before JSON.parse. */
const maxDepth = 64;

/**
 * Parses `json`, which must be a single call.
 * @param keys accepted keys of the arguments; the returned call has them as "arguments"
 */
export function parseCall(json: string, keys: readonly string[] = ["arguments"]): Parsed<Call> {
  const shape = shapeOf(json);
  if (shape.depth > maxDepth) return malformed(`the arguments are nested deeper than ${maxDepth} levels`);
  let value: unknown;
  let finite = true;
  try {
    value = JSON.parse(json, (key, inner) => {
      if (typeof inner === "number" && !Number.isFinite(inner)) finite = false;
      // "__proto__" as a key could set a prototype in a later assignment.
      return key === "__proto__" ? undefined : inner;
    });
  } catch {
    return malformed("the action is not valid JSON");
  }
  if (!finite) return malformed("a number is too large");
  if (!isObject(value)) return malformed("the action must be a JSON object");
  const key = keys.find((name) => Object.hasOwn(value, name)) ?? keys[0]!;
  const { name, [key]: given } = value;
  if (shape.keys.length !== 2 || name === undefined || given === undefined)
    return malformed(`the action must have exactly the keys "name" and "${key}"`);
  if (typeof name !== "string" || name === "") return malformed('"name" must be a non-empty string');
  if (!isObject(given)) return malformed(`"${key}" must be a JSON object`);
  const at = shape.keys.find(({ text }) => text === key)!;
  const text = `${json.slice(0, at.start)}"arguments"${json.slice(at.end)}`;
  return { ok: true, text, tool: { name, arguments: given } };
}

/** A call as an action, for demonstrations and scripted agents. */
export function callAction(name: string, args: Record<string, unknown>, thought?: string): Action {
  const tool = { name, arguments: args };
  return { text: JSON.stringify(tool), ...(thought === undefined ? {} : { thought }), tool };
}

/**
 * The arguments of a call, as generated.
 * @throws NlacError ERR_ENVIRONMENT if `text` is not the call's JSON
 */
export function argumentsText({ text }: Action): string {
  const call = parseCall(text);
  if (!call.ok)
    throw new NlacError(
      "ERR_ENVIRONMENT",
      `The text of an action with a call must be the call as JSON: ${call.reason}.`,
    );
  const key = shapeOf(call.text).keys.find((known) => known.text === "arguments")!;
  const value = call.text.slice(call.text.indexOf("{", key.end));
  return value.slice(0, shapeOf(value).end);
}

/** The markup before a call's name, between name and arguments, and after the arguments. */
export interface CallForm {
  before: string;
  between: string;
  after: string;
}

const jsonForm: CallForm = { before: '{"name": "', between: '", "arguments": ', after: "}" };

/**
 * A grammar of one call of one of `tools`. A schema's title is its tool's name, so that the core's
 * errors name the tool.
 * @throws NlacError ERR_VALUE that names the tool whose schema cannot be enforced
 */
export function callGrammar(tools: readonly ToolSchema[], form: CallForm = jsonForm): Grammar {
  const calls = tools.map(({ name, parameters }): Grammar => {
    const quoted = JSON.stringify(name);
    const standsAlone = alone.some((keyword) => parameters[keyword] !== undefined);
    const schema = standsAlone ? parameters : { type: "object", ...parameters };
    const args: Grammar = { jsonSchema: { ...schema, title: name } };
    grammarText(args, `the tool ${quoted}`);
    return { sequence: [{ literal: quoted.slice(1, -1) + form.between }, args] };
  });
  return { sequence: [{ literal: form.before }, { anyOf: calls }, { literal: form.after }] };
}

const opening = "<tool_call>";
const closing = "</tool_call>";
const pythonTag = "<|python_tag|>";
/** A line that opens a JSON object, with or without Llama's tag. */
const bareCall = /^[ \t]*(?:<\|python_tag\|>)?[ \t]*(?=\{\s*")/m;

/**
 * Parses a turn of a model that calls functions in the form of its chat template:
 * `<tool_call>{"name", "arguments"}</tool_call>` (Qwen, Hermes, SmolLM3), or a bare `{"name",
 * "parameters"}` (Llama 3). Text before the call is its thought. A turn without a call is a plain
 * reply.
 */
export function parseCallTurn(turn: string): Parsed<{ action: Action }> {
  if (turn.includes(opening) || turn.includes(closing)) {
    const calls = turn.split(opening).length - 1;
    if (calls > 1) return severalCalls;
    const start = turn.indexOf(opening);
    const end = turn.indexOf(closing);
    if (calls === 0 || end < start || turn.indexOf(closing, end + 1) >= 0)
      return malformed(`a call must stand between ${opening} and ${closing}`);
    return calling(
      turn.slice(0, start),
      turn.slice(start + opening.length, end),
      turn.slice(end + closing.length),
    );
  }
  const bare = bareCall.exec(turn);
  if (bare !== null) {
    const rest = turn.slice(bare.index + bare[0].length);
    const end = shapeOf(rest).end ?? rest.length;
    return calling(turn.slice(0, bare.index), rest.slice(0, end), rest.slice(end));
  }
  if (turn.includes(pythonTag)) return malformed("a call must be a JSON object");
  const text = turn.trim();
  return text === "" ? malformed("the turn is empty") : { ok: true, action: { text } };
}

const severalCalls = malformed("a turn may hold one call only");

function calling(before: string, json: string, after: string): Parsed<{ action: Action }> {
  const call = parseCall(json.trim(), ["arguments", "parameters"]);
  if (!call.ok) return call;
  if (/^\s*;?\s*\{/.test(after)) return severalCalls;
  if (after.trim() !== "") return malformed("nothing may stand after a call");
  const thought = before.trim();
  const { text, tool } = call;
  return { ok: true, action: { text, ...(thought === "" ? {} : { thought }), tool } };
}

interface Shape {
  /** Deepest nesting of brackets outside of strings. */
  depth: number;
  /** End of the outermost bracket; undefined if it is not closed. */
  end?: number;
  /** Keys of the outermost object, decoded, and their positions including quotes. */
  keys: { text: string; start: number; end: number }[];
}

/** Scans possible JSON up to the end of the first bracket. Takes linear time for any input. */
function shapeOf(text: string): Shape {
  const shape: Shape = { depth: 0, keys: [] };
  let depth = 0;
  for (const { 0: mark, index } of text.matchAll(/"(?:[^"\\]|\\[\s\S]?)*(?:"|$)|[{}[\]]/g)) {
    const end = index + mark.length;
    if (mark === "{" || mark === "[") shape.depth = Math.max(shape.depth, ++depth);
    else if (mark === "}" || mark === "]") depth--;
    else if (depth === 1 && /^\s*:/.test(text.slice(end, end + 64)))
      shape.keys.push({ text: unquoted(mark), start: index, end });
    if (depth <= 0 && shape.depth > 0) return { ...shape, end };
  }
  return shape;
}

function unquoted(string: string): string {
  try {
    return JSON.parse(string) as string;
  } catch {
    return string;
  }
}
