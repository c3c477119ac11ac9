/**
 * Parses function calls: a JSON object with a name and arguments, or the markup of a chat template
 * around them (call-markup.ts).
 */

import { NlacError } from "../base/errors.ts";
import { shapeOf } from "../base/json-text.ts";
import { isObject } from "../base/validation.ts";
import type { Action, ToolSchema } from "../contract/environment.ts";
import { callsIn } from "./call-markup.ts";
import { malformed, type Parsed } from "./parsing.ts";

export type Call = Required<Pick<Action, "text" | "tool">>;

/** A call of a turn, with its id if the model gave it one. */
export type TurnCall = Call & { id?: string };

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
export function argumentsText({ text }: Pick<Action, "text">): string {
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

/**
 * Parses a turn of a model that calls functions in the form of its chat template. Text before the
 * calls is their thought. A turn without a call is a plain reply.
 *
 * @param tools the functions; they tell the types of arguments that are written as plain text
 */
export function parseCalls(
  turn: string,
  tools: readonly ToolSchema[] = [],
): Parsed<{ thought: string; calls: TurnCall[] }> {
  const found = callsIn(turn, tools);
  if (!found.ok) return found;
  const calls: TurnCall[] = [];
  for (const { json, keys, id } of found.calls) {
    const call = parseCall(json, keys);
    if (!call.ok) return call;
    calls.push({ text: call.text, tool: call.tool, ...(id === undefined ? {} : { id }) });
  }
  return { ok: true, thought: found.thought, calls };
}

/** `parseCalls` for one action: a turn may hold one call only. */
export function parseCallTurn(turn: string, tools: readonly ToolSchema[]): Parsed<{ action: Action }> {
  const parsed = parseCalls(turn, tools);
  if (!parsed.ok) return parsed;
  const { thought, calls } = parsed;
  const [call, second] = calls;
  if (second !== undefined) return malformed("a turn may hold one call only");
  if (call !== undefined) {
    const { text, tool } = call;
    return { ok: true, action: { ...(thought === "" ? {} : { thought }), text, tool } };
  }
  return thought === "" ? malformed("the turn is empty") : { ok: true, action: { text: thought } };
}
