/**
 * The names of the functions that a turn calls, for templates that render results together with their
 * calls (gpt-oss, Gemma 4). lib/prompts/ parses the calls; here a call may be malformed.
 */

import type { CallForm } from "./call-form.ts";
import { channelCall, functionRecipient } from "./channel-call.ts";

/** Names in the order of the calls. */
export function calledNames(text: string, { before, between, each }: CallForm): string[] {
  const message = channelCall(text);
  if (message !== undefined) return [functionRecipient.exec(message.recipient)?.[1] ?? message.recipient];
  const names: string[] = [];
  const quote = each?.quote;
  const call = `${escaped(before.trim())}([\\w./-]+)${escaped(between)}`;
  const marks = new RegExp(quote === undefined ? call : `${call}|${escaped(quote)}`, "g");
  let inString = false;
  for (const [mark, name] of text.matchAll(marks)) {
    // What stands in a string is no call.
    if (mark === quote) inString = names.length > 0 && !inString;
    else if (!inString) names.push(name!);
  }
  return names;
}

function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
}
