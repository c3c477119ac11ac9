/**
 * The reasoning that a model writes between <think> tags before it answers, and what of a
 * generation is left once the chat template has dropped it from the history.
 */

import type { Tokenizer } from "./tokenizer.ts";

export const thinkOpen = "<think>";
export const thinkClose = "</think>";

/** How a chat template drops the reasoning of earlier turns. */
export interface ReasoningForm {
  /**
   * Whether the line breaks after the closing tag go too. Otherwise all that follows the tag stays.
   */
  dropsLineBreaks: boolean;
  /**
   * Whether the generation prompt opens the reasoning, so that the model writes the closing tag
   * only.
   */
  opened: boolean;
}

/** What of a turn stays in the history. */
export interface KeptTurn {
  /**
   * Text whose ids were cut in two, encoded anew; usually empty. It stands before the sampled ids.
   */
  head: number[];
  /** The sampled ids from this index on stay. */
  from: number;
}

/**
 * What of a sampled turn the template's history holds: what follows the last closing tag. A turn
 * without one stays whole, as the template has it, unless it was cut off while it reasoned: then
 * nothing of it was said.
 */
export function keptOf(tokenizer: Tokenizer, tokens: readonly number[], form: ReasoningForm): KeptTurn {
  const end = endOfReasoning(tokenizer, tokens);
  if (end === undefined) {
    const ended = tokens.length > 0 && tokenizer.eosTokenIds.includes(tokens.at(-1)!);
    const reasoned = form.opened || tokenizer.decode(tokens.slice(0, 16)).trimStart().startsWith(thinkOpen);
    return { head: [], from: ended || !reasoned ? 0 : tokens.length };
  }
  let { rest, from } = end;
  if (!form.dropsLineBreaks) return { head: tokenizer.encode(rest), from };
  rest = rest.replace(/^\n+/, "");
  // The line breaks may go on in the ids that follow.
  while (rest === "" && from < tokens.length && !tokenizer.specialIds.has(tokens[from]!)) {
    const text = tokenizer.decode([tokens[from]!]);
    if (!text.startsWith("\n")) break;
    rest = text.replace(/^\n+/, "");
    from++;
  }
  return { head: tokenizer.encode(rest), from };
}

/** The same of a text. */
export function keptTextOf(text: string, { dropsLineBreaks }: ReasoningForm): string {
  const at = text.lastIndexOf(thinkClose);
  if (at < 0) return text;
  const rest = text.slice(at + thinkClose.length);
  return dropsLineBreaks ? rest.replace(/^\n+/, "") : rest;
}

/**
 * Where the last closing tag ends: the index of the first id behind it, and the text behind the tag
 * within the id that ends it. Undefined without one.
 */
function endOfReasoning(
  tokenizer: Tokenizer,
  tokens: readonly number[],
): { from: number; rest: string } | undefined {
  const contains = (from: number, to: number) =>
    tokenizer.decode(tokens.slice(from, to)).includes(thinkClose);
  if (!contains(0, tokens.length)) return undefined;
  // Whether the tag is in what follows an id falls from true to false once, so the last tag is
  // found by halving.
  const start = lastTrue(0, tokens.length, (i) => contains(i, tokens.length));
  const before = lastTrue(start, tokens.length, (i) => !contains(start, i));
  const text = tokenizer.decode(tokens.slice(start, before + 1));
  return { from: before + 1, rest: text.slice(text.lastIndexOf(thinkClose) + thinkClose.length) };
}

/** The largest i in [low, high) with `holds(i)`; holds(low) is true, and once false it stays so. */
function lastTrue(low: number, high: number, holds: (i: number) => boolean): number {
  let [yes, no] = [low, high];
  while (no - yes > 1) {
    const middle = (yes + no) >> 1;
    if (holds(middle)) yes = middle;
    else no = middle;
  }
  return yes;
}
