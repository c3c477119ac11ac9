/**
 * What a template writes between the turns of a conversation: read from renderings of a probe, a
 * short conversation of the same shape whose last content is known. So it does not depend on earlier
 * content. Texts have marks (trusted-text.ts) until they are encoded.
 */

import { NlacError } from "../base/errors.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import { answering, type CalledFunction, callingTurn, type Turn, withCallIds } from "./messages.ts";
import type { Marking, RenderOptions, TemplateRenderer } from "./template-renderer.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** The context of a continuation. */
export interface ContinuationContext {
  /** Role of the previous message. */
  after: Message["role"];
  /** Whether the conversation has a system message. */
  system: boolean;
  tools?: readonly ToolSchema[] | undefined;
  /**
   * Called functions, for templates that render a result together with its call, or with its id.
   * After an assistant's turn: the functions that it calls. After a tool's message: first the
   * function that it answers, then the functions that are not answered yet.
   */
  calls?: readonly CalledFunction[] | undefined;
}

/** A short conversation that ends with a message whose content stands nowhere else. */
export interface Probe {
  messages: Turn[];
  content: string;
}

/** Text that a template appends, and the text before it, both with marks. */
interface Continued {
  before: string;
  text: string;
  /**
   * Whether the end of the answer is in `before`. Otherwise `text` begins with it, because the
   * template ends an answer that is followed in another way.
   */
  closed: boolean;
}

/**
 * The ids that the template appends for `messages`. If the template writes the system message or the
 * tools in the turn of the last question, they are not repeated: they stay where they were.
 *
 * @throws NlacError ERR_TOKENIZER if the template refuses the messages or does not append
 */
export function continuationIds(
  renderer: TemplateRenderer,
  tokenizer: Tokenizer,
  given: ContinuationContext,
  messages: readonly Message[],
  options: RenderOptions,
): number[] {
  const { inLastQuestion } = renderer;
  const context = {
    ...given,
    system: given.system && !inLastQuestion.system,
    tools: inLastQuestion.tools ? undefined : given.tools,
  };
  const { calls } = context;
  const said = renderer.turns(messages);
  const turns = calls === undefined ? said : answering(said, calls, context.after === "tool" ? 1 : 0);
  const marking = renderer.marking(tokenizer, turns, context.tools, calls);
  const result =
    continued(renderer, context, turns, options, marking, tokenizer) ??
    // A tool's message that would be joined to the previous one: render it separately.
    (context.after === "tool" && calls === undefined && turns[0]?.role === "tool"
      ? continued(renderer, { ...context, after: "assistant" }, turns, options, marking, tokenizer)
      : undefined);
  if (result === undefined) {
    const next = messages[0]?.role ?? "generation prompt";
    throw new NlacError(
      "ERR_TOKENIZER",
      `The chat template does not continue a conversation by appending: ${next} after ${context.after} changes ` +
        "the text before.",
    );
  }
  if (context.after === "assistant" && turns.length === 0 && result.text === "")
    return promptAfterAnswer(renderer, tokenizer, context, marking);
  const ids = encoded(tokenizer, marking, result);
  return result.closed ? ids : ids.slice(closingLength(tokenizer, ids));
}

/** The generation prompt that some templates write after every conversation, also if not requested. */
function promptAfterAnswer(
  renderer: TemplateRenderer,
  tokenizer: Tokenizer,
  context: ContinuationContext,
  marking: Marking,
): number[] {
  const ids = encoded(tokenizer, marking, lastEnd(renderer, context, marking));
  return ids.slice(closingIds(renderer, tokenizer, context).length);
}

/** The ids by which the template starts an assistant's turn that is followed by others. */
export function openingIds(
  renderer: TemplateRenderer,
  tokenizer: Tokenizer,
  context: ContinuationContext,
): number[] {
  const marking = renderer.marking(tokenizer, [], context.tools, context.calls);
  return encoded(tokenizer, marking, openingText(renderer, context, marking));
}

/** The ids by which the template ends an assistant's turn that is followed by others. */
export function closingIds(
  renderer: TemplateRenderer,
  tokenizer: Tokenizer,
  { system, tools }: Omit<ContinuationContext, "after">,
): number[] {
  const context: ContinuationContext = { after: "assistant", system, tools };
  const marking = renderer.marking(tokenizer, [], tools);
  const next: Turn[] = [{ role: "user", content: "On." }];
  const grown = continued(renderer, context, next, {}, marking, tokenizer);
  if (grown === undefined || grown.closed)
    return encoded(tokenizer, marking, lastEnd(renderer, context, marking));
  const ids = encoded(tokenizer, marking, grown);
  return ids.slice(0, closingLength(tokenizer, ids));
}

/** What the template writes after an answer that is the last message. */
function lastEnd(
  renderer: TemplateRenderer,
  { system, tools }: ContinuationContext,
  marking: Marking,
): Omit<Continued, "closed"> {
  const probe = probeOf(renderer, { after: "assistant", system, tools }, []);
  const said = renderer.render(probe.messages, { tools }, marking);
  const text = textAfter(probe, said);
  return { before: said.slice(0, said.length - text.length), text };
}

/** The text of `openingIds`. */
export function openingText(
  renderer: TemplateRenderer,
  context: ContinuationContext,
  marking: Marking,
): Omit<Continued, "closed"> {
  const probe = probeOf(renderer, context, []);
  const { messages, content } = probe;
  const said = `${content}said`;
  const { tools } = context;
  const text = renderer.render(
    [...messages, { role: "assistant", content: said }, { role: "user", content: "On." }],
    { tools },
    marking,
  );
  const at = text.lastIndexOf(said);
  const asked = text.lastIndexOf(content, at - 1) + content.length;
  const between = text.slice(asked, Math.max(0, at));
  const before = textAfter(probe, renderer.render(messages, { tools }, marking));
  if (at < 0 || !between.startsWith(before)) {
    throw new NlacError("ERR_TOKENIZER", "The chat template does not continue a conversation by appending.");
  }
  return { before: text.slice(0, asked + before.length), text: between.slice(before.length) };
}

/**
 * Undefined if the new messages change the text before them, by more than another control token at
 * the end of the last answer.
 */
export function continued(
  renderer: TemplateRenderer,
  context: ContinuationContext,
  messages: readonly Turn[],
  options: RenderOptions,
  marking: Marking,
  tokenizer: Tokenizer,
): Continued | undefined {
  const probe = probeOf(renderer, context, messages);
  const { tools } = context;
  const before = textAfter(probe, renderer.render(probe.messages, { tools }, marking));
  const grown = renderer.render([...probe.messages, ...messages], { ...options, tools }, marking);
  const after = textAfter(probe, grown);
  if (after.startsWith(before)) {
    const text = after.slice(before.length);
    return { before: grown.slice(0, grown.length - text.length), text, closed: true };
  }
  const rewritten = { before: grown.slice(0, grown.length - after.length), text: after, closed: false };
  const [now, then] = [
    encoded(tokenizer, marking, { ...rewritten, text: before }),
    encoded(tokenizer, marking, rewritten),
  ];
  const length = closingLength(tokenizer, now);
  const same = length > 0 && now.slice(0, length - 1).every((id, i) => id === then[i]);
  return context.after === "assistant" && same && length === closingLength(tokenizer, then)
    ? rewritten
    : undefined;
}

/** A probe whose last message has the role `after`. Its content is in none of `messages`, which follow. */
export function probeOf(
  renderer: TemplateRenderer,
  context: ContinuationContext,
  messages: readonly Turn[],
): Probe {
  const { after, calls, tools } = context;
  const taken = [renderer.source, JSON.stringify([renderer.variables, tools, calls])];
  for (const message of messages) taken.push(message.content);
  let number = 0;
  while (taken.some((text) => text.includes(`marked${number}`))) number++;
  const content = `marked${number}`;

  const before: Turn[] = context.system ? [{ role: "system", content: "Be brief." }] : [];
  const question: Turn = { role: "user", content: "Begin." };
  const answer: Turn = { role: "assistant", content: "Begun." };
  if (calls !== undefined && (after === "assistant" || after === "tool")) {
    const given = { value: after === "assistant" ? content : "begun" };
    const turn = callingTurn(calls.map((call) => ({ ...call, arguments: given })));
    const result = answering([{ role: "tool", content }], calls, 0);
    return { messages: [...before, question, turn, ...(after === "tool" ? result : [])], content };
  }
  if (after === "assistant") before.push(question);
  if (after === "tool") before.push(question, answer);
  if (after === "system") before.length = 0;
  const last: Turn = { role: after, content };
  const isResult = after === "tool" && renderer.readsCallIds;
  return { messages: [...before, ...(isResult ? withCallIds([last]) : [last])], content };
}

/** What follows the probe's last content in a rendering of it. */
export function textAfter({ content }: Probe, text: string): string {
  const at = text.lastIndexOf(content);
  if (at < 0) throw new NlacError("ERR_TOKENIZER", "The chat template omits the content of a message.");
  return text.slice(at + content.length);
}

function encoded(
  tokenizer: Tokenizer,
  { marks }: Marking,
  { before, text }: Omit<Continued, "closed">,
): number[] {
  return tokenizer.encodeAfter(marks.read(before), marks.read(text));
}

/** How many ids end a turn, up to and including the first control token; 0 if there is none. */
function closingLength(tokenizer: Tokenizer, ids: readonly number[]): number {
  return ids.findIndex((id) => tokenizer.specialIds.has(id)) + 1;
}
