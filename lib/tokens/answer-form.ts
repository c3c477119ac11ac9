/**
 * What a model writes between the generation prompt and an answer: white space, a header, or the end
 * of the reasoning that the prompt has opened. Answers that nobody sampled (demonstrations,
 * corrections, records of another tokenizer) need it, so that the model learns them where it would
 * write them.
 */

import type { TextPiece } from "./added-tokens.ts";
import { type ContinuationContext, continued, openingText, probeOf } from "./continuation.ts";
import { opensReasoning, thinkClose, thinkOpen } from "./reasoning.ts";
import { refuses, type TemplateRenderer } from "./template-renderer.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** What stands before answers. */
export interface AnswerForm {
  /** Whether a turn in the history begins with the generation prompt. */
  followsPrompt: boolean;
  /** Between the prompt and an answer in the history; empty if it does not follow the prompt. */
  history: readonly TextPiece[];
  /** Whether the prompt opens the reasoning. */
  opened: boolean;
  /** Between the prompt, or the reasoning after it, and an answer that the model generates. */
  generated: readonly TextPiece[];
}

/** The end of a reasoning that the prompt has opened, for templates that do not show it. */
const closing: readonly TextPiece[] = [
  { text: "\n", trusted: false },
  { text: thinkClose, trusted: true },
  { text: "\n\n", trusted: false },
];

/** Read from a template's renderings of an earlier turn and of the last one. */
export function answerForm(
  renderer: TemplateRenderer,
  tokenizer: Tokenizer,
  context: ContinuationContext,
): AnswerForm {
  const marking = renderer.marking(tokenizer, [], context.tools, context.calls);
  const { tools } = context;
  const prompt = continued(renderer, context, [], { addGenerationPrompt: true }, marking, tokenizer);
  if (!prompt?.closed) return { followsPrompt: true, history: [], opened: false, generated: [] };
  /** What a turn writes after the prompt. */
  const afterPrompt = (turn: () => string): { follows: boolean; pieces: TextPiece[] } => {
    try {
      const text = turn();
      const follows = text.startsWith(prompt.text);
      return { follows, pieces: follows ? marking.marks.read(text.slice(prompt.text.length)) : [] };
    } catch (error) {
      if (refuses(error)) return { follows: true, pieces: [] }; // nothing is known of such turns
      throw error;
    }
  };
  const history = afterPrompt(() => openingText(renderer, context, marking).text);
  const { messages, content } = probeOf(renderer, context, []);
  const render = (options: object) => renderer.render(messages, { tools, ...options });
  const opened = opensReasoning(render({ addGenerationPrompt: true }).slice(render({}).length));
  const form = { followsPrompt: history.follows, history: history.pieces, opened };
  if (!opened) return { ...form, generated: form.history };
  const said = `${content}said`;
  const last = afterPrompt(() => {
    const text = renderer.render([...messages, { role: "assistant", content: said }], { tools }, marking);
    const before = renderer.render(messages, { tools }, marking);
    if (!text.startsWith(before) || !text.includes(said)) return "";
    return text.slice(before.length, text.lastIndexOf(said));
  });
  const closes = last.pieces.some(({ text }) => text.includes(thinkClose));
  return { ...form, generated: closes ? last.pieces : closing };
}

/**
 * An answer after the generation prompt, and after what stands before it.
 *
 * @param lead what the template writes between the prompt and an answer without reasoning
 * @param text may begin with reasoning in <think> tags
 * @param isReasoning whether these tags are reasoning to the template
 */
export function answerPieces(
  text: string,
  lead: readonly TextPiece[],
  { opened, isReasoning }: { opened: boolean; isReasoning: boolean },
): TextPiece[] {
  const said = (part: string): TextPiece => ({ text: part, trusted: false });
  const tag = (part: string): TextPiece => ({ text: part, trusted: true });
  const end = text.startsWith(thinkOpen) && isReasoning ? text.indexOf(thinkClose) : -1;
  if (end >= 0) {
    const [reasoning, rest] = [text.slice(thinkOpen.length, end), text.slice(end + thinkClose.length)];
    return opened
      ? [said(reasoning.trim()), ...lead, said(rest.trimStart())]
      : [tag(thinkOpen), said(reasoning), tag(thinkClose), said(rest)];
  }
  // A recorded answer can begin with what the model has written.
  return text.startsWith(lead.map((piece) => piece.text).join("")) ? [said(text)] : [...lead, said(text)];
}
