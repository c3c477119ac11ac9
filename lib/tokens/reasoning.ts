/**
 * The reasoning before an answer, and the part of a generation that remains after the chat template
 * has dropped it. Reasoning stands between <think> tags, or, as of gpt-oss, in messages of its own
 * before the one that has the answer. In the text of a completion it always stands between the tags.
 */

import type { Tokenizer } from "./tokenizer.ts";

export const thinkOpen = "<think>";
export const thinkClose = "</think>";

/** How a chat template drops the reasoning of earlier turns. */
export interface ReasoningForm {
  /** Whether line breaks after the closing tag are dropped too. */
  dropsLineBreaks: boolean;
  /**
   * Whether the generation prompt contains the opening tag, so that the model does not generate it.
   */
  opened: boolean;
  /**
   * What the model writes before its answer if its reasoning stands in messages of its own (gpt-oss:
   * `<|channel|>final<|message|>`); undefined: reasoning ends with the closing tag.
   */
  answer?: string;
}

/** The part of a turn that stays in the history. */
export interface KeptTurn {
  /** Re-encoded text of an id that was split; usually empty. It precedes the sampled ids. */
  head: number[];
  /** Index of the first sampled id that stays, and after the last. */
  from: number;
  to: number;
}

/**
 * The part of a sampled turn in the template's history: everything after the last closing tag. A
 * turn without a closing tag stays whole, unless it was cut off during its reasoning: then nothing
 * stays.
 */
export function keptOf(tokenizer: Tokenizer, tokens: readonly number[], form: ReasoningForm): KeptTurn {
  if (form.answer !== undefined) return keptAnswer(tokenizer, tokens, form.answer);
  return { ...keptAfterTag(tokenizer, tokens, form), to: tokens.length };
}

/**
 * The ids after the last `mark`, or all ids of a turn that opens no message, without the stop id:
 * the template ends earlier turns in another way.
 */
function keptAnswer(tokenizer: Tokenizer, tokens: readonly number[], mark: string): KeptTurn {
  const { specialIds, eosTokenIds } = tokenizer;
  const ids = tokenizer.encodeTemplate(mark);
  const ended = tokens.length > 0 && eosTokenIds.includes(tokens.at(-1)!);
  const to = ended ? tokens.length - 1 : tokens.length;
  const starts = (i: number) => i + ids.length <= to && ids.every((id, j) => id === tokens[i + j]);
  const last = tokens.findLastIndex((_, i) => starts(i));
  const opens = to > 0 && specialIds.has(tokens[0]!);
  const from = last >= 0 ? last + ids.length : opens ? to : 0;
  // Another message may follow the answer.
  const next = tokens.findIndex((id, i) => i >= from && i < to && specialIds.has(id));
  return { head: [], from, to: next < 0 ? to : next };
}

function keptAfterTag(
  tokenizer: Tokenizer,
  tokens: readonly number[],
  form: ReasoningForm,
): Omit<KeptTurn, "to"> {
  const end = endOfReasoning(tokenizer, tokens);
  if (end === undefined) {
    const ended = tokens.length > 0 && tokenizer.eosTokenIds.includes(tokens.at(-1)!);
    const reasoned = form.opened || tokenizer.decode(tokens.slice(0, 16)).trimStart().startsWith(thinkOpen);
    return { head: [], from: ended || !reasoned ? 0 : tokens.length };
  }
  let { rest, from } = end;
  if (!form.dropsLineBreaks) return { head: tokenizer.encode(rest, { continues: true }), from };
  rest = rest.replace(/^\n+/, "");
  // Line breaks may continue in the following ids.
  while (rest === "" && from < tokens.length && !tokenizer.specialIds.has(tokens[from]!)) {
    const text = tokenizer.decode([tokens[from]!], { continues: true });
    if (!text.startsWith("\n")) break;
    rest = text.replace(/^\n+/, "");
    from++;
  }
  return { head: tokenizer.encode(rest, { continues: true }), from };
}

/** The same for text. */
export function keptTextOf(text: string, { dropsLineBreaks }: ReasoningForm): string {
  const at = text.lastIndexOf(thinkClose);
  if (at < 0) return text;
  const rest = text.slice(at + thinkClose.length);
  return dropsLineBreaks ? rest.replace(/^\n+/, "") : rest;
}

/**
 * The end of the last closing tag: the index of the first id after it, and the rest of the id that
 * contains its end. Undefined without a tag.
 */
function endOfReasoning(
  tokenizer: Tokenizer,
  tokens: readonly number[],
): { from: number; rest: string } | undefined {
  const contains = (from: number, to: number) =>
    tokenizer.decode(tokens.slice(from, to)).includes(thinkClose);
  if (!contains(0, tokens.length)) return undefined;
  // "The text after id i contains the tag" is monotonic in i: find the last tag by bisection.
  const start = lastTrue(0, tokens.length, (i) => contains(i, tokens.length));
  const before = lastTrue(start, tokens.length, (i) => !contains(start, i));
  const text = tokenizer.decode(tokens.slice(start, before + 1), { continues: true });
  return { from: before + 1, rest: text.slice(text.lastIndexOf(thinkClose) + thinkClose.length) };
}

/** The largest i in [low, high) with `holds(i)`, for a monotonic predicate with holds(low) true. */
function lastTrue(low: number, high: number, holds: (i: number) => boolean): number {
  let [yes, no] = [low, high];
  while (no - yes > 1) {
    const middle = (yes + no) >> 1;
    if (holds(middle)) yes = middle;
    else no = middle;
  }
  return yes;
}
