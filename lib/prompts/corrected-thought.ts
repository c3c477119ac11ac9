/**
 * Requests to reasoning models. A target's thought refers to what followed the action, a
 * refinement's thought to the critique; the critic and the policy must produce the same completions
 * without this information. A further request rewrites the thought so that it infers it.
 */

import { thinkClose, thinkOpen } from "../tokens/reasoning.ts";
import { malformed, type Parsed } from "./parsing.ts";

const format = [
  "Write the new thought between <corrected_think> and </corrected_think>; a program reads it, so both tags must be",
  "there, exactly once, with no <think> tags inside and nothing after the closing tag.",
].join("\n");

/** The request after a target evaluation. */
export function correctedTargetThoughtRequest(): string {
  return [
    "The thought between the <think> tags above probably leans on the answer to your action, on the future or on the",
    "final score, as things it was told.",
    "",
    "Rewrite the thought in the same manner and tone so that it expects these things instead of knowing them: it may",
    "use only what had been seen up to your latest action, and where it stated that something happens or that the",
    "score is 0, it should say that it believes so, and why.",
    "",
    format,
  ].join("\n");
}

/** The request after a refined action. */
export function correctedRefinementThoughtRequest(): string {
  return [
    "The thought between the <think> tags above probably starts from the earlier action and from its judgement.",
    "",
    "Rewrite the thought in the same manner and tone so that it reaches the revised action from the last answer you",
    "received alone, as a first attempt: where it cited the earlier action and its judgement, it should weigh such an",
    "action and foresee what would be wrong with it.",
    "",
    format,
  ].join("\n");
}

export function parseCorrectedThought(text: string): Parsed<{ thought: string }> {
  const opens = text.split("<corrected_think>").length - 1;
  const closes = text.split("</corrected_think>").length - 1;
  if (opens !== 1 || closes !== 1) return malformed("there must be exactly one corrected_think block");
  const start = text.indexOf("<corrected_think>") + "<corrected_think>".length;
  const end = text.indexOf("</corrected_think>");
  if (end < start) return malformed("the closing corrected_think tag stands before the opening one");
  const thought = text.slice(start, end).trim();
  if (thought === "") return malformed("the corrected thought is empty");
  if (/<\/?think>/.test(thought)) return malformed("the corrected thought contains a think tag");
  if (text.slice(end + "</corrected_think>".length).trim() !== "") {
    return malformed("text stands after the closing corrected_think tag");
  }
  return { ok: true, thought };
}

/**
 * A reply's thought and the text after it. The last closing tag ends the thought, as in chat
 * templates.
 */
export function splitThought(text: string): { thought: string; rest: string } | undefined {
  const end = text.lastIndexOf(thinkClose);
  if (end < 0) return undefined;
  const open = text.indexOf(thinkOpen);
  const thought = text.slice(open < 0 ? 0 : open + thinkOpen.length, end).trim();
  return { thought, rest: text.slice(end + thinkClose.length) };
}

/** A reply without its thought; all of it if it has none. */
export function withoutThought(text: string): string {
  return splitThought(text)?.rest ?? text;
}
