/**
 * Chat templates: from messages to text and ids, and the text by which a template continues a
 * conversation.
 *
 * Messages are not trusted: only added tokens that the template's own literals and variables spell
 * become ids (trusted-text.ts). Other text is unchanged. Its ids are those of the plain rendering,
 * unless a filter of the template makes a text that spells an added token.
 */

import { NlacError } from "../base/errors.ts";
import type { Message } from "../contract/environment.ts";
import type { TextPiece } from "./added-tokens.ts";
import { type CallForm, callFormOf, callPieces, mapForm, probeNumber, probeValue } from "./call-form.ts";
import {
  type ContinuationContext,
  closingIds,
  continuationIds,
  openingIds,
  openingText,
  probeOf,
  textAfter,
} from "./continuation.ts";
import { callingTurn, checkMessages, isCallId } from "./messages.ts";
import { channelTags, type ReasoningForm, thinkClose, thinkOpen } from "./reasoning.ts";
import { probeTool, type RenderOptions, refuses, TemplateRenderer } from "./template-renderer.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** Options of a chat template. */
export interface ChatTemplateOptions {
  /** Other variables of the template, e.g. `{ bos_token: "<s>", enable_thinking: false }`. */
  variables?: Readonly<Record<string, unknown>>;
}

/** A function call in an assistant's turn. */
export interface CallText {
  name: string;
  /** JSON; its formatting is preserved. */
  arguments: string;
  /** Text before the call. */
  thought?: string | undefined;
  /** For templates that show ids: nine letters and digits. Others are replaced. */
  id?: string | undefined;
}

/** Calls in the template's format. */
export interface WrittenCalls {
  text: string;
  tokens: number[];
  /** The id that ends the turn in place of the usual one, if there is one. */
  end?: number;
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

/** A chat template. Immutable, except that it remembers what it has found out. */
export class ChatTemplate {
  readonly source: string;
  readonly #renderer: TemplateRenderer;
  readonly #callForms = new WeakMap<Tokenizer, Map<string, CallForm<TextPiece[]> | NlacError>>();
  #reasoning: { form: ReasoningForm | undefined } | undefined;

  /** Throws ERR_TOKENIZER if `source` is not a Jinja template, or takes too long to be read. */
  constructor(source: string, { variables = {} }: ChatTemplateOptions = {}) {
    this.source = source;
    this.#renderer = new TemplateRenderer(source, variables);
  }

  /**
   * The chat template of a tokenizer, which may use its named tokens.
   *
   * @throws NlacError ERR_TOKENIZER if it has none, as for base models
   */
  static of(tokenizer: Tokenizer, options: ChatTemplateOptions = {}): ChatTemplate {
    if (tokenizer.chatTemplate === undefined) {
      throw new NlacError(
        "ERR_TOKENIZER",
        "The model has no chat template, so it was not trained on chats; use an instruct model, or add a " +
          "chat_template to its tokenizer_config.json.",
      );
    }
    return new ChatTemplate(tokenizer.chatTemplate, {
      variables: { ...tokenizer.namedTokens, ...options.variables },
    });
  }

  /** Whether the template describes tools to the model. Otherwise messages have to do so. */
  get readsTools(): boolean {
    return this.#renderer.readsTools;
  }

  /**
   * Whether the template shows the id of a call with its result, as those of Mistral 7B v0.3 and Nemo,
   * which refuse a result without an id of nine characters.
   */
  get readsCallIds(): boolean {
    return this.#renderer.readsCallIds;
  }

  /**
   * How the template drops the reasoning of earlier turns from the history, as those of QwQ, Qwen3,
   * DeepSeek-R1 and gpt-oss do; undefined if it does not. Determined by rendering a turn before a
   * question.
   */
  get reasoning(): ReasoningForm | undefined {
    this.#reasoning ??= { form: this.#reasoningForm() };
    return this.#reasoning.form;
  }

  #reasoningForm(): ReasoningForm | undefined {
    const question: Message = { role: "user", content: "Begin." };
    const { content: mark } = probeOf(this.#renderer, { after: "user", system: false }, []);
    const after = (said: string) =>
      this.render([question, { role: "assistant", content: said }, { role: "user", content: "On." }]);
    try {
      const plain = after(mark);
      const reasoned = after(`${thinkOpen}\nWhy not.\n${thinkClose}\n\n${mark}`);
      const dropsLineBreaks = reasoned === plain;
      const asked = this.render([question]);
      const opening = this.render([question], { addGenerationPrompt: true }).slice(asked.length);
      if (!dropsLineBreaks && reasoned !== plain.replace(mark, () => `\n\n${mark}`)) {
        // What opens an earlier answer beyond the generation prompt, the model writes itself: tags.
        const before = plain.slice(asked.length, plain.indexOf(mark));
        const answer = before.slice(opening.length);
        const inTags = answer.startsWith("<") && answer.endsWith(">") && !answer.includes(thinkClose);
        if (opening !== "" && plain.startsWith(asked) && before.startsWith(opening) && inTags)
          return { dropsLineBreaks: false, opened: false, messages: { opening, answer } };
        const { open, close } = channelTags;
        const dropped = after(`${open}Why not.\n${close}\n${mark}`) === plain;
        return dropped ? { dropsLineBreaks: true, opened: false, tags: channelTags } : undefined;
      }
      return {
        dropsLineBreaks,
        opened: opening.lastIndexOf(thinkOpen) > opening.lastIndexOf(thinkClose),
      };
    } catch (error) {
      if (error instanceof NlacError) return undefined; // a template that refuses such a conversation
      throw error;
    }
  }

  /**
   * The text of a conversation, for people. Use `encode` for ids, because this text does not
   * distinguish control tokens from messages that spell them.
   *
   * @throws NlacError ERR_TOKENIZER if the template refuses the messages, or takes too many steps,
   *   too much memory or time; ERR_VALUE for anything but messages
   */
  render(messages: readonly Message[], options: RenderOptions = {}): string {
    return this.#renderer.render(this.#renderer.turns(messages), options);
  }

  /**
   * The ids of a conversation. They equal the ids of `render`'s text, except that text which spells
   * an added token is encoded as ordinary text.
   *
   * @throws NlacError ERR_TOKENIZER if the template refuses the messages
   */
  encode(tokenizer: Tokenizer, messages: readonly Message[], options: RenderOptions = {}): number[] {
    const turns = this.#renderer.turns(messages);
    const marking = this.#renderer.marking(tokenizer, turns, options.tools);
    return tokenizer.encodeTemplate(marking.marks.read(this.#renderer.render(turns, options, marking)));
  }

  /**
   * The ids that the template appends for `messages` (and the start of an assistant's turn). They
   * are determined with a short conversation of the same shape, so they do not depend on earlier
   * content. If a template rewrites earlier turns, for example to drop reasoning, only what it
   * appends counts.
   *
   * If a template joins messages of tools, a new one is rendered like the first; pass them together
   * to join them.
   *
   * @throws NlacError ERR_TOKENIZER if the template refuses the messages or does not append
   */
  encodeContinuation(
    tokenizer: Tokenizer,
    context: ContinuationContext,
    messages: readonly Message[],
    options: { addGenerationPrompt?: boolean } = {},
  ): number[] {
    return continuationIds(this.#renderer, tokenizer, context, messages, options);
  }

  /**
   * The ids by which the template starts an assistant's turn that is followed by others. They may
   * differ from the generation prompt, which may also start the reasoning.
   *
   * @throws NlacError ERR_TOKENIZER if the template refuses such a turn
   */
  encodeOpening(tokenizer: Tokenizer, context: ContinuationContext): number[] {
    return openingIds(this.#renderer, tokenizer, context);
  }

  /**
   * The ids by which the template ends an assistant's turn that others follow. Some templates end the
   * last turn with another control token.
   */
  encodeClosing(tokenizer: Tokenizer, context: Omit<ContinuationContext, "after">): number[] {
    return closingIds(this.#renderer, tokenizer, context);
  }

  /**
   * Calls in the template's format, without the start and end of the turn. The format is determined
   * by rendering known calls.
   *
   * @param calls at least one; the first one's thought stands before them
   * @throws NlacError ERR_CONFIG if the template does not support calls, or writes one per turn;
   *   ERR_VALUE if it needs single arguments and they are no JSON object
   */
  writeCalls(
    tokenizer: Tokenizer,
    context: Omit<ContinuationContext, "after">,
    calls: readonly CallText[],
  ): WrittenCalls {
    const { thought = "" } = calls[0]!;
    const texts = [thought, ...calls.flatMap((call) => [call.name, call.arguments])];
    checkMessages(texts.map((content) => ({ role: "assistant", content })));
    const form = this.#callForm(tokenizer, context);
    if (calls.length > 1 && form.joint === undefined)
      throw new NlacError("ERR_CONFIG", "The model's chat template writes only one call in a turn.");
    const known = calls.map((call) => ({ ...call, id: isCallId(call.id) ? call.id : undefined }));
    const pieces = callPieces(form, known, thought);
    const [end] = form.end === undefined ? [] : tokenizer.encodeTemplate(form.end);
    return {
      text: pieces.map((piece) => piece.text).join(""),
      tokens: tokenizer.encodeTemplate(pieces, { continues: true }),
      ...(end === undefined ? {} : { end }),
    };
  }

  /** The form of the template's calls as text. Throws as `writeCalls`. */
  callForm(tokenizer: Tokenizer, context: Omit<ContinuationContext, "after">): CallForm {
    return mapForm(this.#callForm(tokenizer, context), (pieces) => pieces.map(({ text }) => text).join(""));
  }

  /** The same, but undefined if the template does not support calls. Throws if it reaches a limit. */
  knownCallForm(tokenizer: Tokenizer, context: Omit<ContinuationContext, "after">): CallForm | undefined {
    try {
      return this.callForm(tokenizer, context);
    } catch (error) {
      if (!refuses(error)) throw error;
      return undefined;
    }
  }

  /** Determines the form of calls before it is needed, which takes up to 0.1 s. */
  prepareCallForms(tokenizer: Tokenizer): void {
    if (!this.readsTools) return;
    for (const system of [false, true]) this.knownCallForm(tokenizer, { system, tools: [probeTool] });
  }

  /**
   * The form of the template's calls; remembered. It is the same for all tools, so that it is rendered
   * with a short one: with many tools, the renderings take seconds.
   */
  #callForm(tokenizer: Tokenizer, context: Omit<ContinuationContext, "after">): CallForm<TextPiece[]> {
    let forms = this.#callForms.get(tokenizer);
    if (forms === undefined) {
      forms = new Map();
      this.#callForms.set(tokenizer, forms);
    }
    const { system } = context;
    const tools = context.tools?.length ? [probeTool] : undefined;
    const key = `${system} ${tools !== undefined}`;
    let form = forms.get(key);
    if (form === undefined) {
      try {
        form = this.#renderCallForm(tokenizer, { system, tools });
      } catch (error) {
        if (!refuses(error)) throw error;
        form = error;
      }
      forms.set(key, form);
    }
    if (form instanceof NlacError) throw form;
    return form;
  }

  #renderCallForm(
    tokenizer: Tokenizer,
    { system, tools }: Omit<ContinuationContext, "after">,
  ): CallForm<TextPiece[]> {
    const context = { system, tools };
    const marking = this.#renderer.marking(tokenizer, [], tools);
    const { messages, content: mark } = probeOf(this.#renderer, { ...context, after: "user" }, []);
    const said = `${mark}said`;
    const probes = { names: [`${mark}name`, `${mark}other`], keys: [`${mark}key`, `${mark}second`] } as const;
    const [name, other] = probes.names;
    const [key, second] = probes.keys;
    const end = probeOf(this.#renderer, { ...context, after: "assistant" }, []);
    const closing = textAfter(end, this.#renderer.render(end.messages, { tools }, marking));
    const asked = this.#renderer.render(messages, { tools }, marking);
    const opening = this.#renderer
      .render(messages, { tools, addGenerationPrompt: true }, marking)
      .slice(asked.length);
    /** The text of a turn of calls after what is said before them, and the text before that. */
    const rendered = (...calls: { name: string; given: Record<string, unknown> }[]) => {
      const { tool_calls = [] } = callingTurn(calls.map(({ name, given }) => ({ name, arguments: given })));
      const render = (content: string) =>
        this.#renderer.render([...messages, { role: "assistant", content, tool_calls }], { tools }, marking);
      const text = render(said);
      const at = text.lastIndexOf(said);
      if (at >= 0 && text.indexOf(calls[0]!.name) > at)
        return { turn: text.slice(at + said.length), before: text.slice(0, at) };
      // Llama's template omits text next to a call, and Gemma 4's writes it after the call.
      const alone = render("").slice(asked.length);
      const start = alone.startsWith(opening)
        ? opening
        : openingText(this.#renderer, { ...context, after: "user" }, marking).text;
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
    if (parted === undefined || !this.readsTools)
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
}
