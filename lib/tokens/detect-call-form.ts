/**
 * Detects the form in which a chat template writes function calls (call-form.ts), from calls that it
 * renders: their names, keys and values stand nowhere else, so the text around them is the form.
 */

import { NlacError } from "../base/errors.ts";
import type { TextPiece } from "./added-tokens.ts";
import { type CallForm, type EachArgument, mapForm, notation, type Words } from "./call-form.ts";
import { type ContinuationContext, openingText, probeOf, textAfter } from "./continuation.ts";
import { callingTurn } from "./messages.ts";
import type { TemplateRenderer } from "./template-renderer.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** A value in a rendered call. */
const probeNumber = 417;

/** A nested value in a rendered call. */
function probeValue([first, second]: readonly [string, string]): object {
  return { [second]: [first, probeNumber, true, { [first]: false }], [first]: {} };
}

/** Names and keys of the calls that are rendered; no other text contains them. */
interface ProbeNames {
  names: [string, string];
  keys: [string, string];
}

/** Rendered turns. A value of an argument is its key, unless another is named. */
interface RenderedCalls {
  /** A call of the first name with the first key. */
  one: string;
  /** One call with both keys. */
  two: string;
  /** A call without arguments. */
  none: string;
  /** As `one`, with other values: `probeNumber`, true, false, null, `probeValue`. */
  number: string;
  words: readonly string[];
  nested: string;
  /** Calls of both names, each with the first key; undefined if the template refuses them. */
  pair: string | undefined;
}

/**
 * The form of the template's calls, in conversations with these tools.
 *
 * @throws NlacError ERR_CONFIG if it is none that is known, or the template describes no tools
 */
export function detectCallForm(
  renderer: TemplateRenderer,
  tokenizer: Tokenizer,
  { system: given, tools }: Omit<ContinuationContext, "after">,
): CallForm<TextPiece[]> {
  // Some templates write the system message in the last message, if it is a question; a call follows here.
  const system = given && !renderer.inLastQuestion.system;
  const context = { system, tools };
  const marking = renderer.marking(tokenizer, [], tools);
  const { messages, content: mark } = probeOf(renderer, { ...context, after: "user" }, []);
  const said = `${mark}said`;
  const probes = { names: [`${mark}name`, `${mark}other`], keys: [`${mark}key`, `${mark}second`] } as const;
  const [name, other] = probes.names;
  const [key, second] = probes.keys;
  const end = probeOf(renderer, { ...context, after: "assistant" }, []);
  const closing = textAfter(end, renderer.render(end.messages, { tools }, marking));
  const asked = renderer.render(messages, { tools }, marking);
  const opening = renderer
    .render(messages, { tools, addGenerationPrompt: true }, marking)
    .slice(asked.length);
  /** The text of a turn of calls after what is said before them, and the text before that. */
  const rendered = (...calls: { name: string; given: Record<string, unknown> }[]) => {
    const { tool_calls = [] } = callingTurn(calls.map(({ name, given }) => ({ name, arguments: given })));
    const render = (content: string) =>
      renderer.render([...messages, { role: "assistant", content, tool_calls }], { tools }, marking);
    const text = render(said);
    const at = text.lastIndexOf(said);
    if (at >= 0 && text.indexOf(calls[0]!.name) > at)
      return { turn: text.slice(at + said.length), before: text.slice(0, at) };
    // Llama's template omits text next to a call, and Gemma 4's writes it after the call.
    const alone = render("").slice(asked.length);
    const start = alone.startsWith(opening)
      ? opening
      : openingText(renderer, { ...context, after: "user" }, marking).text;
    return { turn: alone.slice(start.length), before: undefined };
  };
  const open = (turn: string) =>
    turn.endsWith(closing) ? turn.slice(0, turn.length - closing.length) : turn;
  const written = (...calls: { name: string; given: Record<string, unknown> }[]) =>
    open(rendered(...calls).turn);
  const withValue = (value: unknown) => written({ name, given: { [key]: value } });
  let pair: string | undefined;
  try {
    pair = written({ name, given: { [key]: key } }, { name: other, given: { [key]: key } });
  } catch {
    // Some templates refuse more than one call.
  }
  const { turn, before } = rendered({ name, given: { [key]: key } });
  const form = callFormOf(
    { names: [...probes.names], keys: [...probes.keys] },
    {
      one: open(turn),
      two: written({ name, given: { [key]: key, [second]: second } }),
      none: written({ name, given: {} }),
      number: withValue(probeNumber),
      words: [true, false, null].map(withValue),
      nested: withValue(probeValue(probes.keys)),
      pair,
    },
  );
  const parted = form && withOwnThought(form, opening, before?.slice(asked.length));
  // A name that stands in two places, for example in the turn's header too, is in no part of a form.
  if (parted === undefined || JSON.stringify(parted).includes(mark) || !renderer.readsTools)
    throw new NlacError(
      "ERR_CONFIG",
      "The model's chat template does not support function calls, or writes them in an unknown form; " +
        'the action format "call" needs them. Use the action format "tool" in the environment.',
    );
  const separator = parted.separator === "" ? "\n" : parted.separator;
  const pieces = mapForm({ ...parted, separator }, (text) => marking.marks.read(text));
  const last = pieces.after.at(-1);
  const ends = last?.trusted === true && tokenizer.callEndIds.has(tokenizer.idOf(last.text) ?? -1);
  if (turn.endsWith(closing) || !ends) return pieces;
  return { ...pieces, after: pieces.after.slice(0, -1), end: [last] };
}

/** The form of the calls in rendered turns, without an end; undefined if it is none that is known. */
function callFormOf(
  { names, keys }: ProbeNames,
  { one, two, none, number, words, nested, pair }: RenderedCalls,
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
    const joint = jointOf(args);
    return { beforeThought: "", separator, before, between, after, joint, each: undefined, end: undefined };
  }
  const first = new RegExp(`^(\\s*)([^]*?)${name}([^]*?)${key}([^]*?)("?)${key}\\5([^]*)$`).exec(one);
  if (first === null) return undefined;
  const [, separator = "", before = "", opening = "", marked = "", quotes = "", ended = ""] = first;
  // The number shows whether marks stand on both sides of a string.
  const head = separator + before + name + opening + key;
  const rest = number.startsWith(head) ? number.slice(head.length).split(String(probeNumber)) : [];
  const [beforeValue, closing] = rest;
  if (beforeValue === undefined || closing === undefined || rest.length > 2) return undefined;
  const quote = marked.slice(beforeValue.length);
  if (marked !== beforeValue + quote || ended !== quote + closing || (quotes !== "" && quote !== ""))
    return undefined;
  const value = (of: string) => `${of}${beforeValue}${quotes}${quote}${of}${quote}${quotes}`;
  const start = separator + before + name + opening + value(key);
  // The second argument shows where one ends and the next begins.
  const at = two.indexOf(value(second));
  const ending = none.slice((separator + before + name).length);
  if (!two.startsWith(start) || at < 0 || !none.startsWith(separator + before + name)) return undefined;
  const link = two.slice(start.length, at);
  const beforeKey = commonEnd(opening, link);
  const linked = link.slice(0, link.length - beforeKey.length);
  const afterValue = commonStart(linked, closing);
  const between = opening.slice(0, opening.length - beforeKey.length);
  const after = closing.slice(afterValue.length);
  if (two !== start + link + value(second) + closing || ending !== between + after) return undefined;
  const spelled = (["true", "false", "null"] as const).map((word, i) => {
    const text = words[i]!.slice(head.length + beforeValue.length, words[i]!.length - closing.length);
    return [word, text.toLowerCase() === word || (word === "null" && text === "None") ? text : word];
  });
  const each: EachArgument = {
    ...{ beforeKey, beforeValue, afterValue, separator: linked.slice(afterValue.length) },
    ...{ bare: quotes === "" && quote === "", quote: quote === "" ? undefined : quote },
    words: Object.fromEntries(spelled) as Words,
  };
  if (quote !== "") {
    const probe = JSON.stringify(probeValue([key, second]));
    const written = notation(probe, { quote, words: each.words }, (text) => text);
    if (nested !== head + beforeValue + written.join("") + closing) return undefined;
  }
  const joint = jointOf(value(key) + afterValue);
  return { beforeThought: "", separator, before, between, after, joint, each, end: undefined };
}

/**
 * A form of which the thought is a message of its own (gpt-oss): the start of the call's message
 * then belongs to the separator. Undefined if the text before the thought does not fit.
 */
function withOwnThought(form: CallForm, opening: string, before: string | undefined): CallForm | undefined {
  const between = form.separator + form.before;
  const at = opening === "" ? -1 : between.lastIndexOf(opening);
  if (at < 0) return form;
  if (before?.startsWith(opening) !== true) return undefined;
  const start = at + opening.length;
  return {
    ...{ ...form, beforeThought: before.slice(opening.length) },
    ...{ separator: between.slice(0, start), before: between.slice(start) },
  };
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
