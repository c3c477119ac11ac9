/**
 * Finds the calls of a turn in the markup that chat templates teach. Strict: markup that is not
 * complete, or has other text inside or after it, is refused with a reason that a model can act on.
 * One scan from left to right, so that markup inside an argument's JSON is part of the argument.
 */

import { shapeOf } from "../base/json-text.ts";
import type { ToolSchema } from "../contract/environment.ts";
import { type ChannelCall, channelCall, functionRecipient } from "../tokens/channel-call.ts";
import { bracedCalls, bracedOpening } from "./braced-calls.ts";
import { parametersOf, readText } from "./call-arguments.ts";
import { type FoundCall, malformed, type Parsed } from "./parsing.ts";
import { pythonCalls } from "./python-calls.ts";

type Found = Parsed<{ calls: FoundCall[] }>;

const opening = "<tool_call>";
const closing = "</tool_call>";
const pythonTag = "<|python_tag|>";
const mistralMark = "[TOOL_CALLS]";
const olmoOpening = "<function_calls>";
const olmoClosing = "</function_calls>";

/** Spellings of the key of the arguments: Llama 3's template has "parameters". */
const eitherKey = ["arguments", "parameters"];

/** A line that opens a JSON object, with or without Llama's tag. */
const bareCall = /^[ \t]*(?:<\|python_tag\|>[ \t]*)?(?=\{\s*")/m;

const trailing = malformed("nothing may stand after a call");

/** The calls of a turn, and the text before them without the white space around it. */
export function callsIn(
  turn: string,
  tools: readonly ToolSchema[],
): Parsed<{ thought: string; calls: FoundCall[] }> {
  const at = (mark: string) => turn.indexOf(mark);
  const after = (start: number, found: Found): Parsed<{ thought: string; calls: FoundCall[] }> =>
    found.ok ? { ...found, thought: turn.slice(0, start).trim() } : found;
  const message = channelCall(turn);
  if (message !== undefined) return after(message.start, messageCall(turn, message));
  // Of markup inside of other markup, the outer one counts.
  const marks = [opening, closing, mistralMark, olmoOpening, olmoClosing, bracedOpening];
  const starts = marks.map((mark) => [at(mark), mark] as const).filter(([start]) => start >= 0);
  const [start, mark] = starts.sort(([a], [b]) => a - b)[0] ?? [-1, undefined];
  const bare = bareCall.exec(turn);
  if (bare !== null && (start < 0 || bare.index < start)) {
    const json = turn.slice(bare.index + bare[0].length);
    const end = turn.length - json.length + (shapeOf(json).end ?? 0);
    if (start < 0 || end > start) return after(bare.index, bareCalls(json));
  }
  if (mark === opening) return after(start, taggedCalls(turn.slice(start), tools));
  if (mark === closing) return malformed(`a call must stand between ${opening} and ${closing}`);
  if (mark === mistralMark) return after(start, mistralCalls(turn.slice(start)));
  if (mark === bracedOpening) return after(start, bracedCalls(turn.slice(start)));
  if (mark !== undefined) {
    const inner = turn.slice(start + olmoOpening.length);
    const found = mark === olmoOpening ? pythonCalls(inner) : undefined;
    if (found === undefined) return malformed(`calls must stand between ${olmoOpening} and ${olmoClosing}`);
    return after(start, found);
  }
  if (turn.includes(pythonTag)) return malformed("a call must be a JSON object");
  return { ok: true, thought: turn.trim(), calls: [] };
}

/** Llama 3: `{"name", "parameters"}`, several on lines or with semicolons between them. */
function bareCalls(text: string): Found {
  const calls: FoundCall[] = [];
  let rest = text;
  for (;;) {
    const end = shapeOf(rest).end ?? rest.length;
    calls.push({ json: rest.slice(0, end).trim(), keys: eitherKey });
    rest = rest.slice(end);
    const next = /^\s*(?:;\s*)?(?:<\|python_tag\|>\s*)?(?=\{)/.exec(rest);
    if (next === null) break;
    rest = rest.slice(next[0].length);
  }
  return rest.trim() === "" ? { ok: true, calls } : trailing;
}

/**
 * gpt-oss: a message of its own in the channel "commentary", addressed to the function, with the
 * arguments as its content. One in a turn.
 */
function messageCall(turn: string, { recipient, channel, type, content }: ChannelCall): Found {
  const name = functionRecipient.exec(recipient)?.[1];
  if (name === undefined) return malformed("a call must be addressed to functions.NAME");
  if (channel !== "commentary") return malformed("a call must stand in the channel commentary");
  if (type !== undefined && type !== "json") return malformed("the arguments of a call must be json");
  const args = turn.slice(content);
  const { end } = shapeOf(args);
  if (!/^\s*\{/.test(args) || end === undefined) return malformed("the arguments are not a JSON object");
  if (args.slice(end).trim() !== "") return trailing;
  const json = `{"name": ${JSON.stringify(name)}, "arguments": ${args.slice(0, end).trim()}}`;
  return { ok: true, calls: [{ json, keys: ["arguments"] }] };
}

/**
 * `<tool_call>` around a JSON object (Qwen2.5, Qwen3, Hermes), or around a function's tags
 * (Qwen3.5). One or more.
 */
function taggedCalls(text: string, tools: readonly ToolSchema[]): Found {
  const calls: FoundCall[] = [];
  let rest = text;
  while (rest.startsWith(opening)) {
    rest = rest.slice(opening.length);
    const call = /^\s*<function=/.test(rest) ? functionCall(rest, tools) : objectCall(rest);
    if (!call.ok) return call;
    calls.push(call);
    rest = call.rest.trimStart();
  }
  if (rest.startsWith(closing)) return malformed(`a call must stand between ${opening} and ${closing}`);
  return rest === "" ? { ok: true, calls } : trailing;
}

type Cut = Parsed<FoundCall & { rest: string }>;

function objectCall(text: string): Cut {
  const start = text.length - text.trimStart().length;
  const body = text.slice(start);
  // A closing tag in a string of the JSON does not end the call.
  const end = body.startsWith("{") || body.startsWith("[") ? shapeOf(body).end : undefined;
  const close = body.indexOf(closing, end ?? 0);
  if (close < 0) return malformed(`a call must stand between ${opening} and ${closing}`);
  return {
    ...{ ok: true, json: body.slice(0, close).trim(), keys: eitherKey },
    rest: body.slice(close + closing.length),
  };
}

const closeParameter = "</parameter>";
/** Tags that a value of plain text cannot contain, because readers would disagree on its end. */
export const functionTags = [
  ...["<parameter=", closeParameter, "<function=", "</function>"],
  ...[opening, closing],
] as const;

/**
 * `<function=NAME>`, a `<parameter=KEY>` with a value for each argument, `</function>`, as in the
 * chat templates of Qwen3-Coder and Qwen3.5; vLLM reads it in
 * tool_parsers/qwen3coder_tool_parser.py. A line break at the start and the end of a value is
 * markup. Values are plain text, which the function's schema turns into JSON.
 */
function functionCall(text: string, tools: readonly ToolSchema[]): Cut {
  const name = /^\s*<function=([^<>\s]+)>\s*/.exec(text);
  if (name === null) return malformed("<function= must be followed by a name and >");
  const tool = tools.find((one) => one.name === name[1]);
  if (tool === undefined) return malformed(`there is no function ${JSON.stringify(name[1])}`);
  const types = parametersOf(tool);
  const members = new Map<string, string>();
  let rest = text.slice(name[0].length);
  for (;;) {
    const end = /^<\/function>\s*<\/tool_call>/.exec(rest);
    if (end !== null) {
      const given = [...members].map(([key, value]) => `${JSON.stringify(key)}: ${value}`).join(", ");
      const json = `{"name": ${JSON.stringify(name[1])}, "arguments": {${given}}}`;
      return { ok: true, json, keys: ["arguments"], rest: rest.slice(end[0].length) };
    }
    const key = /^<parameter=([^<>\n]+)>/.exec(rest);
    if (key === null)
      return malformed(
        "<function=NAME> must hold parameters only, and end with </function> and </tool_call>",
      );
    const quoted = JSON.stringify(key[1]);
    if (members.has(key[1]!)) return malformed(`the parameter ${quoted} occurs twice`);
    const type = types(key[1]!);
    if (type === undefined) return malformed(`there is no parameter ${quoted}`);
    rest = rest.slice(key[0].length);
    const close = rest.indexOf(closeParameter, type.text ? 0 : endOfJson(rest));
    if (close < 0) return malformed(`the parameter ${quoted} must end with ${closeParameter}`);
    const raw = rest.slice(0, close).replace(/^\n/, "").replace(/\n$/, "");
    const tag = type.text ? functionTags.find((one) => raw.includes(one)) : undefined;
    if (tag !== undefined) return malformed(`the value of ${quoted} must not contain ${tag}`);
    const value = readText(raw, type);
    if (value === undefined) return malformed(`the value of ${quoted} must be ${type.named}`);
    members.set(key[1]!, value);
    rest = rest.slice(close + closeParameter.length).trimStart();
  }
}

/** The end of a JSON object or list at the start of `text`; 0 if there is none. */
function endOfJson(text: string): number {
  return /^\s*[{[]/.test(text) ? (shapeOf(text).end ?? 0) : 0;
}

/**
 * `[TOOL_CALLS]NAME[ARGS]{…}`, repeated for each call (Ministral 3, Devstral; Mistral Small 3.2 has
 * `[CALL_ID]…` before the arguments), or one `[TOOL_CALLS] [{"name", "arguments", "id"}, …]`
 * (Mistral 7B v0.3, Nemo), as in the models' chat templates; vLLM reads both in
 * tool_parsers/mistral_tool_parser.py.
 */
function mistralCalls(text: string): Found {
  const list = /^\[TOOL_CALLS\]\s*\[(?!ARGS\]|CALL_ID\])/.exec(text);
  if (list !== null) return listedCalls(text.slice(list[0].length));
  const calls: FoundCall[] = [];
  let rest = text;
  while (rest.startsWith(mistralMark)) {
    const head = /^\[TOOL_CALLS\]\s*([\w./-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?\[ARGS\]\s*(?=\{)/.exec(rest);
    if (head === null)
      return malformed(`${mistralMark} must be followed by a name, [ARGS] and a JSON object`);
    rest = rest.slice(head[0].length);
    const { end } = shapeOf(rest);
    if (end === undefined) return malformed("the arguments are not valid JSON");
    const json = `{"name": ${JSON.stringify(head[1])}, "arguments": ${rest.slice(0, end)}}`;
    calls.push({ json, keys: ["arguments"], id: head[2] });
    rest = rest.slice(end).trimStart();
  }
  return rest === "" ? { ok: true, calls } : trailing;
}

/** The calls of a list, after its opening bracket. */
function listedCalls(text: string): Found {
  const calls: FoundCall[] = [];
  let rest = text.trimStart();
  for (;;) {
    const { end } = shapeOf(rest);
    if (!rest.startsWith("{") || end === undefined)
      return malformed(`${mistralMark} must be followed by a list of JSON objects`);
    const { json, id } = withoutId(rest.slice(0, end));
    calls.push({ json, keys: ["arguments"], id });
    rest = rest.slice(end).trimStart();
    if (!rest.startsWith(",")) break;
    rest = rest.slice(1).trimStart();
  }
  if (!rest.startsWith("]")) return malformed("the list of calls must end with ]");
  return rest.slice(1).trim() === "" ? { ok: true, calls } : trailing;
}

/** A call without its id, and the id if it is a text of letters, digits and such. */
function withoutId(json: string): { json: string; id: string | undefined } {
  const { keys } = shapeOf(json);
  const at = keys.findIndex(({ text }) => text === "id");
  if (at < 0) return { json, id: undefined };
  const [key, next, before] = [keys[at]!, keys[at + 1], keys[at - 1]];
  const id = /^\s*:\s*"([\w-]+)"/.exec(json.slice(key.end))?.[1];
  if (next !== undefined) return { json: json.slice(0, key.start) + json.slice(next.start), id };
  return before === undefined
    ? { json, id }
    : { json: `${json.slice(0, key.start).replace(/,\s*$/, "")}}`, id };
}
