/**
 * Chat templates: from messages to text and ids, and the text by which a template continues a
 * conversation.
 *
 * Messages are not trusted. Before rendering, a guard character is inserted into all text that
 * spells an added token; tokenization removes it again. Other text is unchanged, so its ids are
 * those of the plain rendering.
 */

import { Template } from "@huggingface/jinja";
import { NlacError } from "../base/errors.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import { type ReasoningForm, thinkClose, thinkOpen } from "./reasoning.ts";
import type { Tokenizer } from "./tokenizer.ts";

export interface RenderOptions {
  /** Functions that the template describes to the model. */
  tools?: readonly ToolSchema[] | undefined;
  /** Append the start of an assistant's turn. Default false. */
  addGenerationPrompt?: boolean;
}

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

/** A Jinja chat template, parsed once. Immutable. */
export class ChatTemplate {
  readonly source: string;
  readonly #template: Template;
  readonly #variables: Readonly<Record<string, unknown>>;
  #reasoning: { form: ReasoningForm | undefined } | undefined;

  /** Throws ERR_TOKENIZER if `source` is not a Jinja template. */
  constructor(source: string, options: ChatTemplateOptions = {}) {
    this.source = source;
    this.#variables = options.variables ?? {};
    try {
      this.#template = new Template(source);
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
    return this.render(messages, { tools }) !== this.render(messages);
  }

  /**
   * How the template drops the reasoning of earlier turns from the history, as those of QwQ, Qwen3
   * and DeepSeek-R1 do; undefined if it does not. Determined by rendering a turn before a question.
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
      if (!dropsLineBreaks && reasoned !== plain.replace(mark, () => `\n\n${mark}`)) return undefined;
      const opening = this.render([question], { addGenerationPrompt: true }).slice(
        this.render([question]).length,
      );
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
   * @throws NlacError ERR_TOKENIZER if the template refuses the messages
   */
  render(messages: readonly Message[], options: RenderOptions = {}): string {
    for (const { role } of messages) {
      if (!roles.has(role)) throw new NlacError("ERR_VALUE", `There is no role ${JSON.stringify(role)}.`);
    }
    return this.#render(
      messages.map(({ role, content }) => ({ role, content })),
      options,
    );
  }

  #render(messages: readonly object[], options: RenderOptions): string {
    try {
      return this.#template.render({
        documents: null,
        ...this.#variables,
        messages,
        tools: options.tools?.length
          ? options.tools.map((tool) => ({ type: "function", function: tool }))
          : null,
        add_generation_prompt: options.addGenerationPrompt ?? false,
      });
    } catch (error) {
      throw new NlacError(
        "ERR_TOKENIZER",
        `The chat template refuses the messages: ${(error as Error).message}`,
        {
          cause: error,
        },
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
    const guarded = this.#guard(tokenizer, messages, options.tools);
    const text = this.render(guarded.messages, { ...options, tools: guarded.tools });
    return tokenizer.encodeTemplate(text, guarded.guard);
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
    const guarded = this.#guard(tokenizer, messages, context.tools);
    const text =
      this.#continuation({ ...context, tools: guarded.tools }, guarded.messages, options) ??
      // A tool's message that would be joined to the previous one: render it separately.
      (context.after === "tool" && guarded.messages[0]?.role === "tool"
        ? this.#continuation(
            { ...context, after: "assistant", tools: guarded.tools },
            guarded.messages,
            options,
          )
        : undefined);
    if (text === undefined) {
      const next = messages[0]?.role ?? "generation prompt";
      throw new NlacError(
        "ERR_TOKENIZER",
        `The chat template does not continue a conversation by appending: ${next} after ${context.after} changes ` +
          "the text before.",
      );
    }
    return tokenizer.encodeTemplate(text, guarded.guard);
  }

  /**
   * The ids by which the template starts an assistant's turn that is followed by others. They may
   * differ from the generation prompt, which may also start the reasoning.
   *
   * @throws NlacError ERR_TOKENIZER if the template refuses such a turn
   */
  encodeOpening(tokenizer: Tokenizer, context: ContinuationContext): number[] {
    const guarded = this.#guard(tokenizer, [], context.tools);
    const { messages, mark } = this.#probe({ ...context, tools: guarded.tools }, []);
    const said = `${mark}said`;
    const { tools } = guarded;
    const text = this.render(
      [...messages, { role: "assistant", content: said }, { role: "user", content: "On." }],
      { tools },
    );
    const at = text.lastIndexOf(said);
    const between = text.slice(text.lastIndexOf(mark, at - 1) + mark.length, Math.max(0, at));
    const before = this.#textAfter(mark, this.render(messages, { tools }));
    if (at < 0 || !between.startsWith(before)) {
      throw new NlacError(
        "ERR_TOKENIZER",
        "The chat template does not continue a conversation by appending.",
      );
    }
    return tokenizer.encodeTemplate(between.slice(before.length), guarded.guard);
  }

  /** The ids by which the template ends an assistant's turn. */
  encodeClosing(tokenizer: Tokenizer, context: Omit<ContinuationContext, "after">): number[] {
    const guarded = this.#guard(tokenizer, [], context.tools);
    const { messages, mark } = this.#probe({ ...context, after: "assistant" }, []);
    const text = this.render(messages, { tools: guarded.tools });
    return tokenizer.encodeTemplate(this.#textAfter(mark, text), guarded.guard);
  }

  /**
   * A call in the template's format, without the start and end of the turn. The format is
   * determined by rendering a known call.
   *
   * @throws NlacError ERR_CONFIG if the template does not support calls, or does not write the
   *   arguments as JSON after the name
   */
  writeCall(
    tokenizer: Tokenizer,
    context: Omit<ContinuationContext, "after">,
    call: CallText,
  ): { text: string; tokens: number[] } {
    const { name, arguments: given, thought = "" } = call;
    const said = [name, given, thought].map((content): Message => ({ role: "assistant", content }));
    const guarded = this.#guard(tokenizer, said, context.tools);
    const [guardedName, guardedArguments, guardedThought] = guarded.messages.map(({ content }) => content);
    const form = this.#callForm({ ...context, tools: guarded.tools });
    const text =
      (thought === "" ? "" : guardedThought + form.separator) +
      [form.before, guardedName, form.between, guardedArguments, form.after].join("");
    return {
      text: text.replaceAll(guarded.guard, ""),
      tokens: tokenizer.encodeTemplate(text, guarded.guard),
    };
  }

  /** The template's text around the thought, name and arguments of a call. */
  #callForm(context: Omit<ContinuationContext, "after">) {
    const { tools } = context;
    const { messages, mark } = this.#probe({ ...context, after: "user" }, []);
    const [said, name, key] = [`${mark}said`, `${mark}name`, `${mark}key`];
    const calls = [{ id: "call00000", type: "function", function: { name, arguments: { [key]: key } } }];
    const written = (content: string) =>
      this.#render([...messages, { role: "assistant", content, tool_calls: calls }], { tools });
    // Llama's template omits text next to a call.
    const text = written(said);
    const at = text.lastIndexOf(said);
    const turn =
      at < 0
        ? written("").slice(this.render(messages, { tools, addGenerationPrompt: true }).length)
        : text.slice(at + said.length);
    const end = this.#probe({ ...context, after: "assistant" }, []);
    const closing = this.#textAfter(end.mark, this.render(end.messages, { tools }));
    const json = `\\{\\s*"${key}":\\s*"${key}"\\s*\\}`;
    const form = new RegExp(`^(\\s*)([^]*?)${name}(",\\s*"\\w+":\\s*)${json}([^]*)$`).exec(
      turn.endsWith(closing) ? turn.slice(0, turn.length - closing.length) : turn,
    );
    if (form === null || !this.readsTools)
      throw new NlacError(
        "ERR_CONFIG",
        "The model's chat template does not support function calls with JSON arguments, which the action format " +
          '"call" needs; use the action format "tool" in the environment.',
      );
    const [, separator = "", before = "", between = "", after = ""] = form;
    return { separator: separator === "" ? "\n" : separator, before, between, after };
  }

  /** Undefined if the new messages change the text before them. */
  #continuation(
    context: ContinuationContext,
    messages: readonly Message[],
    options: RenderOptions,
  ): string | undefined {
    const probe = this.#probe(context, messages);
    const { tools } = context;
    const before = this.#textAfter(probe.mark, this.render(probe.messages, { tools }));
    const grown = this.render([...probe.messages, ...messages], { ...options, tools });
    const after = this.#textAfter(probe.mark, grown);
    return after.startsWith(before) ? after.slice(before.length) : undefined;
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

  #guard(tokenizer: Tokenizer, messages: readonly Message[], tools: readonly ToolSchema[] | undefined) {
    const texts = [this.source, JSON.stringify(this.#variables), ...messages.map(({ content }) => content)];
    forEachText(tools, (text) => texts.push(text));
    const guard = guards.find((candidate) => !texts.some((text) => text.includes(candidate)));
    if (guard === undefined) {
      throw new NlacError("ERR_TOKENIZER", "The messages contain every noncharacter of Unicode.");
    }
    return {
      guard,
      messages: messages.map(({ role, content }) => ({
        role,
        content: tokenizer.guardSpellings(content, guard),
      })),
      tools: mapTexts(tools, (text) => tokenizer.guardSpellings(text, guard)) as ToolSchema[] | undefined,
    };
  }
}

const roles: ReadonlySet<string> = new Set(["system", "user", "assistant", "tool"]);

/**
 * Unicode's noncharacters of the first plane: not in normal text, and unchanged by normalization.
 */
const guards = Array.from({ length: 32 }, (_, i) => String.fromCharCode(0xfdd0 + i));

/** `value` with `change` applied to every string in it, keys included. */
function mapTexts(value: unknown, change: (text: string) => string): unknown {
  if (typeof value === "string") return change(value);
  if (Array.isArray(value)) return value.map((item) => mapTexts(item, change));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [change(key), mapTexts(item, change)]),
  );
}

function forEachText(value: unknown, visit: (text: string) => void): void {
  mapTexts(value, (text) => {
    visit(text);
    return text;
  });
}
