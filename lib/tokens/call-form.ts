/**
 * The form in which a chat template writes function calls, determined from calls that it renders.
 * Two kinds: the arguments as one JSON object after the name (Llama 3, Qwen2.5, Qwen3,
 * Mistral), or one by one (Qwen3.5 in tags, OLMo 3 like Python's keyword arguments).
 */

import { NlacError } from "../base/errors.ts";
import { membersOf } from "../base/json-text.ts";
import { isObject } from "../base/validation.ts";
import type { TextPiece } from "./added-tokens.ts";

/** The text around the parts of a call. `T` is a string, or pieces of trusted and other text. */
export interface CallForm<T = string> {
  /** Between a thought and the call. */
  separator: T;
  /** Before the name. */
  before: T;
  /** After the name. */
  between: T;
  /** After the arguments. */
  after: T;
  /** Between the arguments of a call and the name of the next; undefined if only one is written. */
  joint: T | undefined;
  /** The text around arguments that are written one by one; undefined: they are a JSON object. */
  each: EachArgument<T> | undefined;
}

/** The text around arguments that are written one by one. */
export interface EachArgument<T = string> {
  beforeKey: T;
  beforeValue: T;
  afterValue: T;
  separator: T;
  /** Whether strings stand without quotes. Other values are JSON. */
  bare: boolean;
}

/** A value in a rendered call. */
export const probeNumber = 417;

/** Names and keys of the calls that are rendered; no other text contains them. */
export interface ProbeNames {
  names: [string, string];
  keys: [string, string];
}

/**
 * The form of the calls in rendered turns; undefined if it is none of the two kinds. A value of an
 * argument in a probe is its key.
 *
 * @param one a call of the first name with the first key
 * @param two one call with both keys
 * @param none a call without arguments
 * @param number as `one`, with the number `probeNumber` for a value
 * @param pair calls of both names, each with the first key; undefined if the template refuses them
 */
export function callFormOf(
  { names, keys }: ProbeNames,
  {
    one,
    two,
    none,
    number,
    pair,
  }: { one: string; two: string; none: string; number: string; pair: string | undefined },
): CallForm | undefined {
  const [name, other] = names;
  const [key, second] = keys;
  const json = `\\{\\s*"${key}":\\s*"${key}"\\s*\\}`;
  const object = new RegExp(`^(\\s*)([^]*?)${name}([^]*?)(${json})([^]*)$`).exec(one);
  const jointOf = (args: string) => {
    const at = pair?.indexOf(args) ?? -1;
    const next = pair?.indexOf(other, at) ?? -1;
    return at < 0 || next < 0 ? undefined : pair!.slice(at + args.length, next);
  };
  if (object !== null) {
    const [, separator = "", before = "", between = "", args = "", after = ""] = object;
    return { separator, before, between, after, joint: jointOf(args), each: undefined };
  }
  const first = new RegExp(`^(\\s*)([^]*?)${name}([^]*?)${key}([^]*?)("?)${key}\\5([^]*)$`).exec(one);
  if (first === null) return undefined;
  const [, separator = "", before = "", opening = "", beforeValue = "", quote = "", closing = ""] = first;
  const value = (of: string) => `${of}${beforeValue}${quote}${of}${quote}`;
  // Gemma 4 puts control tokens around strings only, also inside of lists: not one of the two kinds.
  if (number !== separator + before + name + opening + key + beforeValue + probeNumber + closing)
    return undefined;
  const start = separator + before + name + opening + value(key);
  // The second argument shows where one ends and the next begins.
  const at = two.indexOf(value(second));
  const ending = none.slice((separator + before + name).length);
  if (!two.startsWith(start) || at < 0 || !none.startsWith(separator + before + name)) return undefined;
  const link = two.slice(start.length, at);
  const beforeKey = commonEnd(opening, link);
  const rest = link.slice(0, link.length - beforeKey.length);
  const afterValue = commonStart(rest, closing);
  const between = opening.slice(0, opening.length - beforeKey.length);
  const after = closing.slice(afterValue.length);
  if (two !== start + link + value(second) + closing || ending !== between + after) return undefined;
  const each = {
    ...{ beforeKey, beforeValue, afterValue, separator: rest.slice(afterValue.length) },
    bare: quote === "",
  };
  return { separator, before, between, after, joint: jointOf(value(key) + afterValue), each };
}

/**
 * Calls as pieces, the first one after `thought` if there is one. Adjacent untrusted ones are one.
 */
export function callPieces(
  form: CallForm<TextPiece[]>,
  calls: readonly { name: string; arguments: string }[],
  thought: string,
): TextPiece[] {
  const pieces: TextPiece[] = thought === "" ? [] : [untrusted(thought), ...form.separator];
  for (const [i, { name, arguments: given }] of calls.entries()) {
    pieces.push(...(i === 0 ? form.before : form.joint!), untrusted(name), ...form.between);
    pieces.push(...argumentPieces(form.each, given));
  }
  const result: TextPiece[] = [];
  for (const { text, trusted } of [...pieces, ...form.after]) {
    const last = result.at(-1);
    if (last !== undefined && !last.trusted && !trusted) last.text += text;
    else result.push({ text, trusted });
  }
  return result;
}

/** The form with `change` applied to each of its texts. */
export function mapForm<T, U>(form: CallForm<T>, change: (markup: T) => U): CallForm<U> {
  const { separator, before, between, after, joint, each } = form;
  return {
    separator: change(separator),
    ...{ before: change(before), between: change(between), after: change(after) },
    joint: joint === undefined ? undefined : change(joint),
    each: each && {
      ...{ beforeKey: change(each.beforeKey), beforeValue: change(each.beforeValue) },
      ...{ afterValue: change(each.afterValue), separator: change(each.separator), bare: each.bare },
    },
  };
}

function argumentPieces(each: EachArgument<TextPiece[]> | undefined, json: string): TextPiece[] {
  if (each === undefined) return [untrusted(json)];
  return membersIn(json).flatMap(([key, value], i) => [
    ...(i === 0 ? [] : each.separator),
    ...[...each.beforeKey, untrusted(key), ...each.beforeValue],
    untrusted(each.bare && value.startsWith('"') ? (JSON.parse(value) as string) : value),
    ...each.afterValue,
  ]);
}

/** The members of arguments; of a repeated key the last one, as for JSON.parse. */
function membersIn(json: string): [key: string, value: string][] {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch {
    // Refused below.
  }
  if (!isObject(value)) throw new NlacError("ERR_VALUE", "The arguments of a call must be a JSON object.");
  return [...new Map(membersOf(json).map((member) => [member.key, member.value]))];
}

function untrusted(text: string): TextPiece {
  return { text, trusted: false };
}

function commonStart(a: string, b: string): string {
  let length = 0;
  while (length < a.length && a[length] === b[length]) length++;
  return a.slice(0, length);
}

function commonEnd(a: string, b: string): string {
  let length = 0;
  while (length < Math.min(a.length, b.length) && a.at(-1 - length) === b.at(-1 - length)) length++;
  return a.slice(a.length - length);
}
