/**
 * Renders a chat template: turns to text, and to text in which the template's own added tokens are
 * marks (trusted-text.ts). A marking belongs to one tokenizer, and none of its marks occurs in the
 * messages that it is made for.
 * Templates come with models and are not trusted: see jinja.ts for their limits.
 */

import { NlacError } from "../base/errors.ts";
import { getOrAdd } from "../base/get-or-add.ts";
import { shown } from "../base/validation.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import { parseTemplate, renderTemplate } from "./jinja.ts";
import { type MarkLiteral, TemplateLimitError } from "./jinja-interpreter.ts";
import {
  type CalledFunction,
  checkMessages,
  forEachText,
  mapTexts,
  roles,
  sizeOf,
  type Turn,
  withCallIds,
} from "./messages.ts";
import type { Tokenizer } from "./tokenizer.ts";
import { literalMarker, type MarkScope, Marks, unusedAlphabet } from "./trusted-text.ts";

/** What a rendering includes besides the messages. */
export interface RenderOptions {
  /** Functions that the template describes to the model. */
  tools?: readonly ToolSchema[] | undefined;
  /** Append the start of an assistant's turn. Default false. */
  addGenerationPrompt?: boolean;
}

/** Marks of trusted text while a template runs, for one tokenizer. */
export interface Marking {
  marks: Marks;
  mark: MarkLiteral;
  scope: MarkScope;
}

/** Whether an error says that a template does not support calls, and not that it reached a limit. */
export function refuses(error: unknown): error is NlacError {
  return error instanceof NlacError && !(error.cause instanceof TemplateLimitError);
}

/** A function with which properties of the template are determined. */
export const probeTool: ToolSchema = {
  name: "probe",
  description: "",
  parameters: { type: "object", properties: {} },
};

/** Conversations for which the ids must be those of the plain rendering. */
const plainConversations: readonly (readonly Turn[])[] = (
  [["user"], ["system", "user", "assistant", "user"], ["user", "assistant", "tool"]] as const
).map((said) => said.map((role) => ({ role, content: "Begin." })));

/** A Jinja chat template, parsed once. Immutable, except for what it remembers. */
export class TemplateRenderer {
  readonly source: string;
  readonly variables: Readonly<Record<string, unknown>>;
  readonly #program: unknown;
  /** By tokenizer: what has to be marked, and the markings by alphabet. */
  readonly #markings = new WeakMap<Tokenizer, { scope: MarkScope; made: Map<number, Marking> }>();
  #readsTools: boolean | undefined;
  #readsCallIds: boolean | undefined;
  #inLastQuestion: { system: boolean; tools: boolean } | undefined;

  /** Throws ERR_TOKENIZER if `source` is not a Jinja template, or takes too long to be read. */
  constructor(source: string, variables: Readonly<Record<string, unknown>>) {
    this.source = source;
    this.variables = variables;
    try {
      this.#program = parseTemplate(source);
    } catch (error) {
      throw new NlacError("ERR_TOKENIZER", `The chat template cannot be read: ${(error as Error).message}`, {
        cause: error,
      });
    }
  }

  /** Whether the template describes tools to the model. */
  get readsTools(): boolean {
    const rendered = (options: RenderOptions): string | undefined => {
      try {
        return this.render([{ role: "user", content: "?" }], options);
      } catch (error) {
        if (refuses(error)) return undefined;
        throw error;
      }
    };
    this.#readsTools ??= ![undefined, rendered({})].includes(rendered({ tools: [probeTool] }));
    return this.#readsTools;
  }

  /** Whether the template shows the id of a call with its result. */
  get readsCallIds(): boolean {
    this.#readsCallIds ??= this.#showsCallIds();
    return this.#readsCallIds;
  }

  #showsCallIds(): boolean {
    const [result] = withCallIds([{ role: "tool", content: "Done." }]);
    const before = ["user", "assistant"].map(
      (role): Turn => ({ role: role as Turn["role"], content: "Begin." }),
    );
    const rendered = (id: string) => this.render([...before, { ...result!, tool_call_id: id }]);
    try {
      return rendered("abcdefgh1") !== rendered("abcdefgh2");
    } catch (error) {
      if (!refuses(error)) throw error;
      return false;
    }
  }

  /**
   * Whether the template writes the system message, and the tools, in the turn of the last question
   * instead of the first, as those of Mistral 7B v0.3 and Nemo do.
   */
  get inLastQuestion(): { system: boolean; tools: boolean } {
    const [system, answer] = ["A probe of instructions.", "A probe of answers."] as const;
    const turns: Turn[] = [
      { role: "user", content: "Begin." },
      { role: "assistant", content: answer },
      { role: "user", content: "On." },
    ];
    const lastHas = (text: string, first: Turn[], tools?: ToolSchema[]): boolean => {
      try {
        const rendered = this.render([...first, ...turns], { tools });
        return rendered.slice(rendered.lastIndexOf(answer)).includes(text);
      } catch (error) {
        if (!refuses(error)) throw error;
        return false;
      }
    };
    this.#inLastQuestion ??= {
      system: lastHas(system, [{ role: "system", content: system }]),
      tools: lastHas("probe_of_tools", [], [{ ...probeTool, name: "probe_of_tools" }]),
    };
    return this.#inLastQuestion;
  }

  /** The messages as the template needs them: with ids of calls, if it shows these. */
  turns(messages: readonly Message[]): Turn[] {
    const turns = checkMessages(messages);
    return turns.some(({ role }) => role === "tool") && this.readsCallIds ? withCallIds(turns) : turns;
  }

  /**
   * The text of turns; with marks, if `marking` is given.
   *
   * @throws NlacError ERR_TOKENIZER if the template refuses the turns, or exceeds a limit; ERR_VALUE
   *   for tools that are not an array
   */
  render(messages: readonly Turn[], options: RenderOptions = {}, marking?: Marking): string {
    const { tools } = options;
    if (tools !== undefined && tools !== null && !Array.isArray(tools)) {
      throw new NlacError("ERR_VALUE", `The tools must be an array; they are ${shown(tools)}.`);
    }
    const { mark, scope } = marking ?? {};
    const variables = mark === undefined ? this.variables : mapTexts(this.variables, mark);
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

  /** Marks that occur in none of these messages and tools. */
  marking(
    tokenizer: Tokenizer,
    messages: readonly Turn[],
    tools: readonly ToolSchema[] | undefined,
    calls: readonly CalledFunction[] = [],
  ): Marking {
    const { scope, made } = getOrAdd(this.#markings, tokenizer, () => ({
      scope: this.#scopeFor(tokenizer),
      made: new Map(),
    }));
    const texts = [this.source, JSON.stringify(this.variables), ...messages.map(({ content }) => content)];
    for (const { name, id = "" } of calls) texts.push(name, id);
    try {
      forEachText(tools, (text) => texts.push(text));
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      throw new NlacError("ERR_VALUE", "The tools are nested too deeply.", { cause: error });
    }
    const alphabet = unusedAlphabet(texts);
    return getOrAdd(made, alphabet, () => this.#newMarking(tokenizer, scope, alphabet));
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
    const alphabet = unusedAlphabet([this.source, JSON.stringify(this.variables)]);
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
      text = this.render(messages, { addGenerationPrompt: true }, marking);
    } catch (error) {
      if ((error as Error).cause instanceof TemplateLimitError) throw error;
      return undefined;
    }
    const ids = tokenizer.encodeTemplate(marking === undefined ? text : marking.marks.read(text));
    return ids.filter((id) => tokenizer.addedIds.has(id));
  }
}
