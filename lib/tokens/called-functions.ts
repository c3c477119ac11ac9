/**
 * The functions that a turn calls, for templates that render results by their calls: gpt-oss and
 * Gemma 4 by names, Mistral 7B v0.3 and Nemo by ids. lib/prompts/ parses the calls; here a call may be
 * malformed.
 */

import { escapePattern } from "../base/escape-pattern.ts";
import { membersOf, shapeOf } from "../base/json-text.ts";
import { type CallForm, probeIds } from "./call-form.ts";
import { channelCall, functionRecipient } from "./channel-call.ts";
import type { CalledFunction } from "./messages.ts";

/** In the order of the calls, with the ids that the turn has. */
export function calledFunctions(text: string, form: CallForm): CalledFunction[] {
  const message = channelCall(text);
  if (message !== undefined)
    return [{ name: functionRecipient.exec(message.recipient)?.[1] ?? message.recipient }];
  const { before, between, each } = form;
  if (each === undefined && before.includes("{")) return functionsInJson(text, before);
  const called: CalledFunction[] = [];
  const quote = each?.quote;
  const id = escapePattern(between).replace(probeIds, "(\\w+)");
  const call = `${escapePattern(before.trim())}([\\w./-]+)${id}`;
  const marks = new RegExp(quote === undefined ? call : `${call}|${escapePattern(quote)}`, "g");
  let inString = false;
  for (const [mark, name, id] of text.matchAll(marks)) {
    // What stands in a string is no call.
    if (mark === quote) inString = called.length > 0 && !inString;
    else if (!inString) called.push({ name: name!, ...(id === undefined ? {} : { id }) });
  }
  return called;
}

/** Calls that are JSON objects with their names, after the mark with which `before` starts. */
function functionsInJson(text: string, before: string): CalledFunction[] {
  const mark = /^[^\s{]*/.exec(before.trim())![0];
  const at = text.indexOf(mark);
  let rest = at < 0 ? "" : text.slice(at + mark.length);
  const called: CalledFunction[] = [];
  for (;;) {
    const start = /^[\s,[]*(?=\{)/.exec(rest);
    if (start === null) return called;
    rest = rest.slice(start[0].length);
    const end = shapeOf(rest).end ?? rest.length;
    const members = new Map(membersOf(rest.slice(0, end)).map(({ key, value }) => [key, value]));
    const [name, id] = [members.get("name"), members.get("id")].map(textIn);
    if (name !== undefined) called.push({ name, ...(id === undefined ? {} : { id }) });
    rest = rest.slice(end);
  }
}

function textIn(json: string | undefined): string | undefined {
  const found = /^"(?:[^"\\]|\\.)*"/.exec(json ?? "");
  try {
    return found === null ? undefined : (JSON.parse(found[0]) as string);
  } catch {
    return undefined;
  }
}
