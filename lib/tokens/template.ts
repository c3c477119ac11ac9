/**
 * Chat templates: from messages to text and ids. `ChatTemplate` encodes conversations
 * (template-renderer.ts), what continues them (continuation.ts), and calls in the template's format
 * (call-form.ts), and says how the template drops reasoning (reasoning.ts).
 *
 * Messages are not trusted: only added tokens that the template's own literals and variables spell
 * become ids (trusted-text.ts). Other text is unchanged. Its ids are those of the plain rendering,
 * unless a filter of the template makes a text that spells an added token.
 */

import { NlacError } from "../base/errors.ts";
import { getOrAdd } from "../base/get-or-add.ts";
import type { Message } from "../contract/environment.ts";
import type { TextPiece } from "./added-tokens.ts";
import { type AnswerForm, answerForm } from "./answer-form.ts";
import { type CallForm, callPieces, mapForm } from "./call-form.ts";
import { type ContinuationContext, closingIds, continuationIds, openingIds } from "./continuation.ts";
import { detectCallForm } from "./detect-call-form.ts";
import { checkMessages, isCallId } from "./messages.ts";
import { type ReasoningForm, reasoningFormOf } from "./reasoning.ts";
import { RememberedIds } from "./remembered-ids.ts";
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

/** A chat template. Immutable, except for what it remembers. */
export class ChatTemplate {
  readonly source: string;
  readonly #renderer: TemplateRenderer;
  /** Whether continuations may contain the time of day. They are not remembered then. */
  readonly #mayPrintTime: boolean;
  readonly #continuations = new WeakMap<Tokenizer, RememberedIds>();
  readonly #callForms = new WeakMap<Tokenizer, Map<string, CallForm<TextPiece[]> | NlacError>>();
  readonly #answerForms = new WeakMap<Tokenizer, Map<string, AnswerForm>>();
  #reasoning: { form: ReasoningForm | undefined } | undefined;

  /** Throws ERR_TOKENIZER if `source` is not a Jinja template, or takes too long to be read. */
  constructor(source: string, options: ChatTemplateOptions = {}) {
    this.source = source;
    this.#mayPrintTime = source.includes("strftime_now") && /%[HMS]/.test(source);
    this.#renderer = new TemplateRenderer(source, options.variables ?? {});
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
    this.#reasoning ??= { form: reasoningFormOf(this.#renderer) };
    return this.#reasoning.form;
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
    const remembered = getOrAdd(this.#continuations, tokenizer, () => new RememberedIds());
    const turns = checkMessages(messages);
    const make = () => continuationIds(this.#renderer, tokenizer, context, turns, options);
    if (this.#mayPrintTime) return make();
    // A template may print the date.
    const today = new Date().toDateString();
    return remembered.ids([today, context, turns, options], make);
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
   * What stands between the generation prompt and answers; remembered. It is the same for all tools,
   * so that it is rendered with a short one.
   */
  answerForm(tokenizer: Tokenizer, context: ContinuationContext): AnswerForm {
    const { after, system, calls } = context;
    const tools = context.tools?.length ? [probeTool] : undefined;
    const forms = getOrAdd(this.#answerForms, tokenizer, () => new Map());
    return getOrAdd(forms, [after, system, tools !== undefined, calls?.length].join(), () =>
      answerForm(this.#renderer, tokenizer, { ...context, tools }),
    );
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
    const forms = getOrAdd(this.#callForms, tokenizer, () => new Map());
    const { system } = context;
    const tools = context.tools?.length ? [probeTool] : undefined;
    const form = getOrAdd(forms, `${system} ${tools !== undefined}`, () => {
      try {
        return detectCallForm(this.#renderer, tokenizer, { system, tools });
      } catch (error) {
        if (refuses(error)) return error;
        throw error;
      }
    });
    if (form instanceof NlacError) throw form;
    return form;
  }
}
