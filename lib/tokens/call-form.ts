/**
 * The form in which a chat template writes function calls (detect-call-form.ts finds it), and calls
 * written in it. Two kinds: the arguments as one JSON object after the name (Llama 3, Qwen2.5, Qwen3,
 * Mistral, gpt-oss), or one by one (Qwen3.5 in tags, OLMo 3 like Python's keyword arguments, Gemma 4
 * in a notation with a mark on both sides of strings).
 */

import { NlacError } from "../base/errors.ts";
import { itemsOf, membersOf, shapeOf } from "../base/json-text.ts";
import { compareText } from "../base/python-text.ts";
import { isObject } from "../base/validation.ts";
import type { TextPiece } from "./added-tokens.ts";
import { callId } from "./messages.ts";

/**
 * The text around the parts of a call. `T` is a string, or pieces of trusted and other text. Texts
 * that contain ids of calls have those of the first call and the second (`callId`).
 */
export interface CallForm<T = string> {
  /** Before a thought that is a message of its own (gpt-oss); otherwise empty. */
  beforeThought: T;
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
  /**
   * Ends a turn of calls in place of the usual end (gpt-oss, Gemma 4). Such templates render a
   * function's result together with its call.
   */
  end: T | undefined;
}

/** The text around arguments that are written one by one. */
export interface EachArgument<T = string> {
  beforeKey: T;
  beforeValue: T;
  afterValue: T;
  separator: T;
  /** Whether strings stand without quotes. */
  bare: boolean;
  /**
   * Stands on both sides of a string, also inside of lists and objects, whose keys have no quotes
   * and are sorted, as the arguments are (Gemma 4). Undefined: values other than `words` are JSON.
   */
  quote: T | undefined;
  /** How these values are spelled: as in JSON, or as in Python ("True"). */
  words: Words;
}

/** Spellings of the values that are words in JSON. */
export type Words = Readonly<Record<"true" | "false" | "null", string>>;

/** The ids in rendered calls. */
export const probeIds: RegExp = new RegExp(`${callId(0)}|${callId(1)}`, "g");

/**
 * Calls as pieces, the first one after `thought` if there is one. Adjacent untrusted ones are one.
 */
export function callPieces(
  form: CallForm<TextPiece[]>,
  calls: readonly { name: string; arguments: string; id?: string | undefined }[],
  thought: string,
): TextPiece[] {
  const idOf = (i: number) => calls[i]?.id ?? callId(i);
  /** The pieces, with the ids of a call and of the next one. */
  const withIds = (pieces: readonly TextPiece[], i: number) =>
    pieces.map(({ text, trusted }) => ({
      text: text.replace(probeIds, (id) => idOf(id === callId(0) ? i : i + 1)),
      trusted,
    }));
  const pieces: TextPiece[] =
    thought === "" ? [] : [...form.beforeThought, untrusted(thought), ...form.separator];
  for (const [i, { name, arguments: given }] of calls.entries()) {
    pieces.push(...(i === 0 ? withIds(form.before, 0) : withIds(form.joint!, i - 1)));
    pieces.push(untrusted(name), ...withIds(form.between, i));
    pieces.push(...argumentPieces(form.each, given));
  }
  const result: TextPiece[] = [];
  for (const { text, trusted } of [...pieces, ...withIds(form.after, calls.length - 1)]) {
    const last = result.at(-1);
    if (last !== undefined && !last.trusted && !trusted) last.text += text;
    else result.push({ text, trusted });
  }
  return result;
}

/** The form with `change` applied to each of its texts. */
export function mapForm<T, U>(form: CallForm<T>, change: (markup: T) => U): CallForm<U> {
  const { beforeThought, separator, before, between, after, joint, each, end } = form;
  const optional = (markup: T | undefined) => (markup === undefined ? undefined : change(markup));
  return {
    ...{ beforeThought: change(beforeThought), separator: change(separator) },
    ...{ before: change(before), between: change(between), after: change(after) },
    ...{ joint: optional(joint), end: optional(end) },
    each: each && {
      ...{ beforeKey: change(each.beforeKey), beforeValue: change(each.beforeValue) },
      ...{ afterValue: change(each.afterValue), separator: change(each.separator) },
      ...{ bare: each.bare, quote: optional(each.quote), words: each.words },
    },
  };
}

function argumentPieces(each: EachArgument<TextPiece[]> | undefined, json: string): TextPiece[] {
  if (each === undefined) return [untrusted(json)];
  const members = membersIn(json);
  if (each.quote !== undefined && shapeOf(json).depth > maxDepth)
    throw new NlacError("ERR_VALUE", `The arguments of a call are nested deeper than ${maxDepth} levels.`);
  return (each.quote === undefined ? members : sortedByKey(members)).flatMap(([key, value], i) => [
    ...(i === 0 ? [] : each.separator),
    ...[...each.beforeKey, untrusted(key), ...each.beforeValue],
    ...valuePieces(each, value),
    ...each.afterValue,
  ]);
}

function valuePieces(each: EachArgument<TextPiece[]>, value: string): TextPiece[] {
  const { bare, quote, words } = each;
  if (quote !== undefined) return notation(value, { quote, words }, (text) => [untrusted(text)]).flat();
  if (bare && value.startsWith('"')) return [untrusted(JSON.parse(value) as string)];
  return [untrusted(Object.hasOwn(words, value) ? words[value as keyof Words] : value)];
}

/** Deepest nesting of an argument. */
const maxDepth = 64;

/** Valid JSON in the notation of Gemma 4's calls, with the spelling of its numbers. */
export function notation<T>(
  json: string,
  { quote, words }: { quote: T; words: Words },
  text: (written: string) => T,
): T[] {
  const value = json.trim();
  if (value.startsWith('"')) return [quote, text(JSON.parse(value) as string), quote];
  const inner = (item: string) => notation(item, { quote, words }, text);
  const joined = (parts: readonly T[][]) =>
    parts.flatMap((part, i) => (i === 0 ? part : [text(","), ...part]));
  if (value.startsWith("[")) return [text("["), ...joined(itemsOf(value).map(inner)), text("]")];
  if (!value.startsWith("{"))
    return [text(Object.hasOwn(words, value) ? words[value as keyof Words] : value)];
  const members = sortedByKey(lastMembers(value));
  const written = members.map(([key, item]) => [text(`${key}:`), ...inner(item)]);
  return [text("{"), ...joined(written), text("}")];
}

/** In the order of Jinja's `dictsort`. */
export function sortedByKey<T>(members: readonly [key: string, value: T][]): [key: string, value: T][] {
  return [...members].sort(([a], [b]) => compareText(a.toLowerCase(), b.toLowerCase()));
}

/** The members of an object; of a repeated key the last one, as for JSON.parse. */
function lastMembers(object: string): [key: string, value: string][] {
  return [...new Map(membersOf(object).map((member) => [member.key, member.value]))];
}

function membersIn(json: string): [key: string, value: string][] {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch {
    // Refused below.
  }
  if (!isObject(value)) throw new NlacError("ERR_VALUE", "The arguments of a call must be a JSON object.");
  return lastMembers(json);
}

function untrusted(text: string): TextPiece {
  return { text, trusted: false };
}
