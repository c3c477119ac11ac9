/**
 * Chat templates: from messages to text and ids, and the text by which a template continues a
 * conversation.
 *
 * Messages are not trusted: only added tokens that the template's own literals and variables spell
 * become ids (trusted-text.ts). Other text is unchanged. Its ids are those of the plain rendering,
 * unless a filter of the template makes a text that spells an added token.
 * Templates come with models and are not trusted either: see jinja.ts for their limits.
 */

import { NlacError } from "../base/errors.ts";
import { shown } from "../base/validation.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import type { TextPiece } from "./added-tokens.ts";
import { type CallForm, callFormOf, callPieces, mapForm, probeNumber } from "./call-form.ts";
import { type MarkLiteral, parseTemplate, renderTemplate, TemplateLimitError } from "./jinja.ts";
import { checkMessages, forEachText, mapTexts, roles, sizeOf, type Turn } from "./messages.ts";
import { type ReasoningForm, thinkClose, thinkOpen } from "./reasoning.ts";
import type { Tokenizer } from "./tokenizer.ts";
import { literalMarker, type MarkScope, Marks, unusedAlphabet } from "./trusted-text.ts";

/** What a rendering includes besides the messages. */
export interface RenderOptions {
  /** Functions that the template describes to the model. */
  tools?: readonly ToolSchema[] | undefined;
  /** Append the start of an assistant's turn. Default false. */
  addGenerationPrompt?: boolean;
}

/** Options of a chat template. */
export interface ChatTemplateOptions {
  /** Other variables of the template, e.g. `{ bos_token: "<s>", enable_thinking: false }`. */
  variables?: Readonly<Record<string, unknown>>;
}

/** The context of a continuation. */
export interface ContinuationContext {
  /** Role of the previous message. */
  after: Message["role"];
  /** Whether the conversation has a system message. */
  system: boolean;
  tools?: readonly ToolSchema[] | undefined;
}

/** A function call in an assistant's turn. */
export interface CallText {
  name: string;
  /** JSON; its formatting is preserved. */
  arguments: string;
  /** Text before the call. */
  thought?: string | undefined;
}

/** Marks of trusted text while a template runs, for one tokenizer. */
interface Marking {
  marks: Marks;
  mark: MarkLiteral;
  scope: MarkScope;
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

const prompted = { addGenerationPrompt: true };

/** Call forms that are remembered, by the tools. */
const maxCallForms = 16;

/** Conversations for which the ids must be those of the plain rendering. */
const plainConversations: readonly (readonly Turn[])[] = (
  [["user"], ["system", "user", "assistant", "user"], ["user", "assistant", "tool"]] as const
).map((said) => said.map((role) => ({ role, content: "Begin." })));

/** A Jinja chat template, parsed once. Immutable. */
export class ChatTemplate {
  readonly source: string;
  readonly #program: unknown;
  readonly #variables: Readonly<Record<string, unknown>>;
  /** By tokenizer: what has to be marked, and the markings by alphabet. */
  readonly #markings = new WeakMap<Tokenizer, { scope: MarkScope; made: Map<number, Marking> }>();
  readonly #callForms = new WeakMap<Tokenizer, Map<string, CallForm<TextPiece[]>>>();
  #reasoning: { form: ReasoningForm | undefined } | undefined;
  #readsTools: boolean | undefined;

  /** Throws ERR_TOKENIZER if `source` is not a Jinja template, or takes too long to be read. */
  constructor(source: string, options: ChatTemplateOptions = {}) {
    this.source = source;
    this.#variables = options.variables ?? {};
    try {
      this.#program = parseTemplate(source);
    } catch (error) {
      throw new NlacError("ERR_TOKENIZER", `The chat template cannot be read: ${(error as Error).message}`, {
        cause: error,
      });
    }
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
    const messages: Message[] = [{ role: "user", content: "?" }];
    const tools = [{ name: "probe", description: "", parameters: { type: "object", properties: {} } }];
    this.#readsTools ??= this.render(messages, { tools }) !== this.render(messages);
    return this.#readsTools;
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
    const { mark } = this.#probe({ after: "user", system: false }, []);
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
        if (opening === "" || !plain.startsWith(asked) || !before.startsWith(opening) || !inTags)
          return undefined;
        return { dropsLineBreaks: false, opened: false, answer };
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
    return this.#render(checkMessages(messages), options);
  }

  #render(messages: readonly Turn[], options: RenderOptions, marking?: Marking): string {
    const { tools } = options;
    if (tools !== undefined && tools !== null && !Array.isArray(tools)) {
      throw new NlacError("ERR_VALUE", `The tools must be an array; they are ${shown(tools)}.`);
    }
    const { mark, scope } = marking ?? {};
    const variables = mark === undefined ? this.#variables : mapTexts(this.#variables, mark);
    const said =
      scope === "assembled" ? messages.map((turn) => ({ ...turn, role: mark!(turn.role) })) : messages;
    try {
      return renderTemplate(
        this.#program,
        {
          documents: null,
          ...(variables as Record<string, unknown>),
          messages: said,
          tools: tools?.length ? tools.map((tool) => ({ type: "function", function: tool })) : null,
          add_generation_prompt: options.addGenerationPrompt ?? false,
        },
        sizeOf([messages, tools]),
        mark,
      );
    } catch (error) {
      throw new NlacError(
        "ERR_TOKENIZER",
        `The chat template refuses the messages: ${(error as Error).message}`,
        { cause: error },
      );
    }
  }

  /**
   * The ids of a conversation. They equal the ids of `render`'s text, except that text which spells
   * an added token is encoded as ordinary text.
   *
   * @throws NlacError ERR_TOKENIZER if the template refuses the messages
   */
  encode(tokenizer: Tokenizer, messages: readonly Message[], options: RenderOptions = {}): number[] {
    const turns = checkMessages(messages);
    const marking = this.#marking(tokenizer, turns, options.tools);
    return tokenizer.encodeTemplate(marking.marks.read(this.#render(turns, options, marking)));
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
    const turns = checkMessages(messages);
    const marking = this.#marking(tokenizer, turns, context.tools);
    const continued =
      this.#continuation(context, turns, options, marking, tokenizer) ??
      // A tool's message that would be joined to the previous one: render it separately.
      (context.after === "tool" && turns[0]?.role === "tool"
        ? this.#continuation({ ...context, after: "assistant" }, turns, options, marking, tokenizer)
        : undefined);
    if (continued === undefined) {
      const next = messages[0]?.role ?? "generation prompt";
      throw new NlacError(
        "ERR_TOKENIZER",
        `The chat template does not continue a conversation by appending: ${next} after ${context.after} changes ` +
          "the text before.",
      );
    }
    const ids = encoded(tokenizer, marking, continued);
    return continued.closed ? ids : ids.slice(closingLength(tokenizer, ids));
  }

  /**
   * The ids by which the template starts an assistant's turn that is followed by others. They may
   * differ from the generation prompt, which may also start the reasoning.
   *
   * @throws NlacError ERR_TOKENIZER if the template refuses such a turn
   */
  encodeOpening(tokenizer: Tokenizer, context: ContinuationContext): number[] {
    const marking = this.#marking(tokenizer, [], context.tools);
    const { messages, mark } = this.#probe(context, []);
    const said = `${mark}said`;
    const { tools } = context;
    const text = this.#render(
      [...messages, { role: "assistant", content: said }, { role: "user", content: "On." }],
      { tools },
      marking,
    );
    const at = text.lastIndexOf(said);
    const asked = text.lastIndexOf(mark, at - 1) + mark.length;
    const between = text.slice(asked, Math.max(0, at));
    const before = this.#textAfter(mark, this.#render(messages, { tools }, marking));
    if (at < 0 || !between.startsWith(before)) {
      throw new NlacError(
        "ERR_TOKENIZER",
        "The chat template does not continue a conversation by appending.",
      );
    }
    return encoded(tokenizer, marking, {
      before: text.slice(0, asked + before.length),
      text: between.slice(before.length),
    });
  }

  /**
   * The ids by which the template ends an assistant's turn that others follow. Some templates end the
   * last turn with another control token.
   */
  encodeClosing(tokenizer: Tokenizer, context: Omit<ContinuationContext, "after">): number[] {
    const marking = this.#marking(tokenizer, [], context.tools);
    const { messages, mark } = this.#probe({ ...context, after: "assistant" }, []);
    const said = this.#render(messages, { tools: context.tools }, marking);
    const text = this.#textAfter(mark, said);
    const last = { before: said.slice(0, said.length - text.length), text, closed: true };
    const grown = this.#continuation({ ...context, after: "assistant" }, [], prompted, marking, tokenizer);
    if (grown === undefined || grown.closed) return encoded(tokenizer, marking, last);
    const ids = encoded(tokenizer, marking, grown);
    return ids.slice(0, closingLength(tokenizer, ids));
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
  ): { text: string; tokens: number[] } {
    const { thought = "" } = calls[0]!;
    const texts = [thought, ...calls.flatMap((call) => [call.name, call.arguments])];
    checkMessages(texts.map((content) => ({ role: "assistant", content })));
    const form = this.#callForm(tokenizer, context);
    if (calls.length > 1 && form.joint === undefined)
      throw new NlacError("ERR_CONFIG", "The model's chat template writes only one call in a turn.");
    const pieces = callPieces(form, calls, thought);
    return {
      text: pieces.map((piece) => piece.text).join(""),
      tokens: tokenizer.encodeTemplate(pieces, { continues: true }),
    };
  }

  /** The form of the template's calls as text. Throws as `writeCalls`. */
  callForm(tokenizer: Tokenizer, context: Omit<ContinuationContext, "after">): CallForm {
    return mapForm(this.#callForm(tokenizer, context), (pieces) => pieces.map(({ text }) => text).join(""));
  }

  /** The form of the template's calls; remembered. */
  #callForm(tokenizer: Tokenizer, context: Omit<ContinuationContext, "after">): CallForm<TextPiece[]> {
    let forms = this.#callForms.get(tokenizer);
    if (forms === undefined) {
      forms = new Map();
      this.#callForms.set(tokenizer, forms);
    }
    const key = `${context.system} ${JSON.stringify(context.tools)}`;
    let form = forms.get(key);
    if (form === undefined) {
      form = this.#renderCallForm(tokenizer, context);
      if (forms.size >= maxCallForms) forms.clear();
      forms.set(key, form);
    }
    return form;
  }

  #renderCallForm(tokenizer: Tokenizer, context: Omit<ContinuationContext, "after">): CallForm<TextPiece[]> {
    const { tools } = context;
    const marking = this.#marking(tokenizer, [], tools);
    const { messages, mark } = this.#probe({ ...context, after: "user" }, []);
    const said = `${mark}said`;
    const probes = { names: [`${mark}name`, `${mark}other`], keys: [`${mark}key`, `${mark}second`] } as const;
    const [name, other] = probes.names;
    const [key, second] = probes.keys;
    const end = this.#probe({ ...context, after: "assistant" }, []);
    const closing = this.#textAfter(end.mark, this.#render(end.messages, { tools }, marking));
    /** The text of a turn of calls, after what is said before them. */
    const written = (...calls: { name: string; keys: string[]; value?: number }[]) => {
      const tool_calls = calls.map(({ name, keys, value }) => {
        const given = Object.fromEntries(keys.map((key) => [key, value ?? key]));
        return { id: "call00000", type: "function", function: { name, arguments: given } };
      });
      const render = (content: string) =>
        this.#render([...messages, { role: "assistant", content, tool_calls }], { tools }, marking);
      // Llama's template omits text next to a call.
      const text = render(said);
      const at = text.lastIndexOf(said);
      const turn =
        at < 0
          ? render("").slice(this.#render(messages, { tools, addGenerationPrompt: true }, marking).length)
          : text.slice(at + said.length);
      return turn.endsWith(closing) ? turn.slice(0, turn.length - closing.length) : turn;
    };
    let pair: string | undefined;
    try {
      pair = written({ name, keys: [key] }, { name: other, keys: [key] });
    } catch {
      // Some templates refuse more than one call.
    }
    const form = callFormOf(
      { names: [...probes.names], keys: [...probes.keys] },
      {
        one: written({ name, keys: [key] }),
        two: written({ name, keys: [key, second] }),
        none: written({ name, keys: [] }),
        number: written({ name, keys: [key], value: probeNumber }),
        pair,
      },
    );
    const before = this.#render(messages, { tools }, marking);
    const opening = this.#render(messages, { tools, addGenerationPrompt: true }, marking).slice(
      before.length,
    );
    // A call that is a message of its own, as gpt-oss has them, is no part of a turn.
    const ownMessage = opening !== "" && form?.before.includes(opening);
    if (form === undefined || ownMessage || !this.readsTools)
      throw new NlacError(
        "ERR_CONFIG",
        "The model's chat template does not support function calls, or writes them in an unknown form; " +
          'the action format "call" needs them. Use the action format "tool" in the environment.',
      );
    const separator = form.separator === "" ? "\n" : form.separator;
    return mapForm({ ...form, separator }, (text) => marking.marks.read(text));
  }

  /**
   * Undefined if the new messages change the text before them, by more than another control token at
   * the end of the last answer.
   */
  #continuation(
    context: ContinuationContext,
    messages: readonly Message[],
    options: RenderOptions,
    marking: Marking,
    tokenizer: Tokenizer,
  ): Continued | undefined {
    const probe = this.#probe(context, messages);
    const { tools } = context;
    const before = this.#textAfter(probe.mark, this.#render(probe.messages, { tools }, marking));
    const grown = this.#render([...probe.messages, ...messages], { ...options, tools }, marking);
    const after = this.#textAfter(probe.mark, grown);
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

  /** A short conversation that ends with a message of role `after` and content `mark`. */
  #probe(context: ContinuationContext, messages: readonly Message[]): { messages: Message[]; mark: string } {
    const taken = [this.source, JSON.stringify(this.#variables), JSON.stringify(context.tools) ?? ""];
    for (const { content } of messages) taken.push(content);
    let number = 0;
    while (taken.some((text) => text.includes(`marked${number}`))) number++;
    const mark = `marked${number}`;

    const before: Message[] = context.system ? [{ role: "system", content: "Be brief." }] : [];
    const question: Message = { role: "user", content: "Begin." };
    const answer: Message = { role: "assistant", content: "Begun." };
    if (context.after === "assistant") before.push(question);
    if (context.after === "tool") before.push(question, answer);
    if (context.after === "system") before.length = 0;
    return { messages: [...before, { role: context.after, content: mark }], mark };
  }

  #textAfter(mark: string, text: string): string {
    const at = text.lastIndexOf(mark);
    if (at < 0) throw new NlacError("ERR_TOKENIZER", "The chat template omits the content of a message.");
    return text.slice(at + mark.length);
  }

  /** Marks that occur in none of these messages and tools. */
  #marking(
    tokenizer: Tokenizer,
    messages: readonly Turn[],
    tools: readonly ToolSchema[] | undefined,
  ): Marking {
    let known = this.#markings.get(tokenizer);
    if (known === undefined) {
      known = { scope: this.#scopeFor(tokenizer), made: new Map() };
      this.#markings.set(tokenizer, known);
    }
    const texts = [this.source, JSON.stringify(this.#variables), ...messages.map(({ content }) => content)];
    try {
      forEachText(tools, (text) => texts.push(text));
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      throw new NlacError("ERR_VALUE", "The tools are nested too deeply.", { cause: error });
    }
    const alphabet = unusedAlphabet(texts);
    let marking = known.made.get(alphabet);
    if (marking === undefined) {
      marking = this.#newMarking(tokenizer, known.scope, alphabet);
      known.made.set(alphabet, marking);
    }
    return marking;
  }

  #newMarking(tokenizer: Tokenizer, scope: MarkScope, alphabet: number): Marking {
    const marks = new Marks(alphabet);
    return { marks, scope, mark: literalMarker(tokenizer, marks, scope, roles) };
  }

  /**
   * What has to be marked so that plain conversations have the ids of the plain rendering. Throws
   * ERR_TOKENIZER if nothing gives all of its control tokens.
   */
  #scopeFor(tokenizer: Tokenizer): MarkScope {
    const alphabet = unusedAlphabet([this.source, JSON.stringify(this.#variables)]);
    const plain = plainConversations.map((messages) => this.#addedOf(tokenizer, messages));
    const gives = (scope: MarkScope, wanted: (id: number) => boolean) => {
      const marking = this.#newMarking(tokenizer, scope, alphabet);
      return plainConversations.every((messages, i) => {
        if (plain[i] === undefined) return true;
        const ids = this.#addedOf(tokenizer, messages, marking)?.filter(wanted);
        return ids?.join() === plain[i].filter(wanted).join();
      });
    };
    for (const wanted of [() => true, (id: number) => tokenizer.specialIds.has(id)]) {
      for (const scope of ["whole", "assembled"] as const) if (gives(scope, wanted)) return scope;
    }
    throw new NlacError(
      "ERR_TOKENIZER",
      "The chat template assembles control tokens from parts, so they cannot be distinguished from the text of messages.",
    );
  }

  /** The added tokens of a conversation; undefined if the template refuses it. */
  #addedOf(tokenizer: Tokenizer, messages: readonly Turn[], marking?: Marking): number[] | undefined {
    let text: string;
    try {
      text = this.#render(messages, { addGenerationPrompt: true }, marking);
    } catch (error) {
      if ((error as Error).cause instanceof TemplateLimitError) throw error;
      return undefined;
    }
    const ids = tokenizer.encodeTemplate(marking === undefined ? text : marking.marks.read(text));
    return ids.filter((id) => tokenizer.addedIds.has(id));
  }
}
