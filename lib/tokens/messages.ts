/** Messages as a chat template sees them: checked, measured, and with their texts replaced. */

import { NlacError } from "../base/errors.ts";
import { shown } from "../base/validation.ts";
import type { Message } from "../contract/environment.ts";

/** The roles that a message may have. */
export const roles: ReadonlySet<string> = new Set(["system", "user", "assistant", "tool"]);

/** A message as the template sees it. */
export interface Turn {
  role: Message["role"];
  content: string;
  tool_calls?: readonly object[];
  /** The call that a tool's message answers, and the name of its function. */
  tool_call_id?: string;
  name?: string;
}

/** A function that a turn calls. */
export interface CalledFunction {
  name: string;
  /** The id of the call, by which its result refers to it; only for templates that show ids. */
  id?: string;
}

/** A turn of calls, with ids that `answering` refers to. */
export function callingTurn(calls: readonly (CalledFunction & { arguments: object })[]): Turn {
  const tool_calls = calls.map(({ id, ...call }, i) => ({
    ...{ id: id ?? callId(i), type: "function", function: call },
  }));
  return { role: "assistant", content: "", tool_calls };
}

/** The turns, of which the tools' messages at the start answer the calls from `first` on. */
export function answering(turns: readonly Turn[], calls: readonly CalledFunction[], first: number): Turn[] {
  const others = turns.findIndex(({ role }) => role !== "tool");
  return turns.map((turn, i) => {
    if (others >= 0 && i >= others) return turn;
    const call = Math.min(first + i, calls.length - 1);
    const { name, id = callId(call) } = calls[call]!;
    return { ...turn, tool_call_id: id, name };
  });
}

/** The turns, with an id for each tool's message: its place among adjacent ones. */
export function withCallIds(turns: readonly Turn[]): Turn[] {
  let place = 0;
  return turns.map((turn) => {
    if (turn.role !== "tool") place = 0;
    return turn.role === "tool" ? { ...turn, tool_call_id: callId(place++) } : turn;
  });
}

/** The id of a call that has none: nine letters and digits, as Mistral's templates require. */
export function callId(index: number): string {
  return `call${String(index).padStart(5, "0")}`;
}

/** Whether templates accept `id`; another one is replaced by `callId`. */
export function isCallId(id: unknown): id is string {
  return typeof id === "string" && /^[A-Za-z0-9]{9}$/.test(id);
}

/** The role and content of each message. Throws ERR_VALUE if one is missing. */
export function checkMessages(messages: readonly Message[]): Turn[] {
  if (!Array.isArray(messages)) {
    throw new NlacError("ERR_VALUE", `The messages must be an array; they are ${shown(messages)}.`);
  }
  return (messages as readonly (Partial<Message> | null)[]).map((message, i) => {
    const { role, content } = message ?? {};
    if (role === undefined || !roles.has(role)) {
      throw new NlacError("ERR_VALUE", `messages[${i}]: there is no role ${shown(role)}.`);
    }
    if (typeof content !== "string") {
      throw new NlacError("ERR_VALUE", `messages[${i}].content must be a string; it is ${shown(content)}.`);
    }
    return { role, content };
  });
}

/** Characters of all strings in `value`, and 64 for each of its parts. */
export function sizeOf(value: unknown): number {
  if (typeof value === "string") return 64 + value.length;
  if (typeof value !== "object" || value === null) return 64;
  return Object.entries(value).reduce((sum, [key, item]) => sum + key.length + sizeOf(item), 64);
}

/** `value` with `change` applied to every string in it, keys included. */
export function mapTexts(value: unknown, change: (text: string) => string): unknown {
  if (typeof value === "string") return change(value);
  if (Array.isArray(value)) return value.map((item) => mapTexts(item, change));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [change(key), mapTexts(item, change)]),
  );
}

/** Calls `visit` with every string in `value`, keys included. */
export function forEachText(value: unknown, visit: (text: string) => void): void {
  mapTexts(value, (text) => {
    visit(text);
    return text;
  });
}
