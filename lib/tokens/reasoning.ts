/**
 * The reasoning before an answer: how a chat template drops it, and the part of a generation that
 * remains. Reasoning stands between <think> tags; between control tokens (Gemma 4); or in
 * messages of its own before the one that has the answer or a call (gpt-oss). In the text of a
 * completion it always stands between the tags.
 */

import { NlacError } from "../base/errors.ts";
import { channelCall, mayBeHeader } from "./channel-call.ts";
import { probeOf } from "./continuation.ts";
import type { Turn } from "./messages.ts";
import type { TemplateRenderer } from "./template-renderer.ts";
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
  /** Control tokens around the reasoning, instead of the <think> tags. */
  tags?: typeof channelTags;
  /** If reasoning stands in messages of its own: how they and the answer start. */
  messages?: {
    /** Starts a message; the generation prompt (gpt-oss: `<|start|>assistant`). */
    opening: string;
    /** What the model writes between it and its answer (gpt-oss: `<|channel|>final<|message|>`). */
    answer: string;
  };
}

/** Gemma 4's tags. A line with the channel's name follows the first one. */
const channelTags = { open: "<|channel>thought\n", mark: "<|channel>", close: "<channel|>" } as const;

/** Compares renderings of an earlier turn with and without reasoning. Undefined if all of it stays. */
export function reasoningFormOf(renderer: TemplateRenderer): ReasoningForm | undefined {
  const { content: answer } = probeOf(renderer, { after: "user", system: false }, []);
  const question: Turn = { role: "user", content: "Begin." };
  const earlier = (said: string) =>
    renderer.render([question, { role: "assistant", content: said }, { role: "user", content: "On." }]);
  try {
    const plain = earlier(answer);
    const asked = renderer.render([question]);
    const opening = renderer.render([question], { addGenerationPrompt: true }).slice(asked.length);
    // <think> tags.
    const reasoned = earlier(`${thinkOpen}\nWhy not.\n${thinkClose}\n\n${answer}`);
    const dropsLineBreaks = reasoned === plain;
    if (dropsLineBreaks || reasoned === plain.replace(answer, () => `\n\n${answer}`))
      return { dropsLineBreaks, opened: opensReasoning(opening) };
    // Messages of its own. What opens an earlier answer beyond the generation prompt, the model writes
    // itself: tags.
    const before = plain.slice(asked.length, plain.indexOf(answer));
    const header = before.slice(opening.length);
    const inTags = header.startsWith("<") && header.endsWith(">") && !header.includes(thinkClose);
    if (opening !== "" && plain.startsWith(asked) && before.startsWith(opening) && inTags)
      return { dropsLineBreaks: false, opened: false, messages: { opening, answer: header } };
    // Control tokens.
    const { open, close } = channelTags;
    const dropped = earlier(`${open}Why not.\n${close}\n${answer}`) === plain;
    return dropped ? { dropsLineBreaks: true, opened: false, tags: channelTags } : undefined;
  } catch (error) {
    if (error instanceof NlacError) return undefined; // a template that refuses such a conversation
    throw error;
  }
}

/** Whether a generation prompt opens the reasoning. */
export function opensReasoning(prompt: string): boolean {
  return prompt.lastIndexOf(thinkOpen) > prompt.lastIndexOf(thinkClose);
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
  if (form.messages !== undefined) return keptMessage(tokenizer, tokens, form.messages);
  return { ...keptAfterTag(tokenizer, tokens, form), to: tokens.length };
}

/**
 * The last message if it is a call, with the header that was sampled; else the first answer. A turn
 * that opens no message starts with its answer. An answer's stop id is left out, because the template
 * may end earlier answers in another way. `CompletionReader` shows the same messages, and also
 * reasoning and an answer before a call.
 */
function keptMessage(
  tokenizer: Tokenizer,
  tokens: readonly number[],
  { opening, answer }: NonNullable<ReasoningForm["messages"]>,
): KeptTurn {
  const { specialIds, eosTokenIds } = tokenizer;
  const isSpecial = (id: number, i: number) => i < to && specialIds.has(id);
  const ended = tokens.length > 0 && eosTokenIds.includes(tokens.at(-1)!);
  const to = ended ? tokens.length - 1 : tokens.length;
  const starts = (ids: readonly number[]) => (_: unknown, i: number) =>
    i + ids.length <= to && ids.every((id, j) => id === tokens[i + j]);
  const open = tokenizer.encodeTemplate(opening);
  const last = tokens.findLastIndex(starts(open));
  const start = last < 0 ? 0 : last + open.length;
  const message = tokenizer.decode(tokens.slice(start, to));
  const call = channelCall(message);
  if (call !== undefined && message.slice(0, call.start).trim() === "")
    return { head: [], from: start, to: tokens.length };
  const special = tokens.findIndex(isSpecial);
  const begun = tokenizer.decode(tokens.slice(0, special < 0 ? to : special), { continues: true });
  const header = tokenizer.encodeTemplate(answer);
  const first = tokens.findIndex(starts(header));
  const from = !mayBeHeader(begun) ? 0 : first < 0 ? to : first + header.length;
  // Another message may follow the answer.
  const next = tokens.findIndex((id, i) => i >= from && isSpecial(id, i));
  return { head: [], from, to: next < 0 ? to : next };
}

function keptAfterTag(
  tokenizer: Tokenizer,
  tokens: readonly number[],
  form: ReasoningForm,
): Omit<KeptTurn, "to"> {
  const end = form.tags ? endOfTags(tokenizer, tokens, form.tags) : endOfReasoning(tokenizer, tokens);
  if (end === undefined) {
    const ended = tokens.length > 0 && tokenizer.eosTokenIds.includes(tokens.at(-1)!);
    const open = form.tags?.mark ?? thinkOpen;
    const reasoned = form.opened || tokenizer.decode(tokens.slice(0, 16)).trimStart().startsWith(open);
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

/** The same for tags that are control tokens. */
function endOfTags(
  tokenizer: Tokenizer,
  tokens: readonly number[],
  { close }: typeof channelTags,
): { from: number; rest: string } | undefined {
  const last = tokens.lastIndexOf(tokenizer.idOf(close) ?? -1);
  return last < 0 ? undefined : { from: last + 1, rest: "" };
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
