/**
 * A conversation as the ids a model has seen and written. It grows by appending ids and is never
 * rendered or tokenized again: what the model sampled stays as sampled, with its log probabilities,
 * and the template's text for a turn is appended once. The reasoning before an answer is left out
 * where the template drops it from the history.
 */

import { NlacError } from "../base/errors.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import { keptOf, keptTextOf } from "./reasoning.ts";
import type { CallText, ChatTemplate } from "./template.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** A run of ids with one origin; `[start, end)` in tokens. */
export interface Segment {
  /**
   * "environment": messages, with the template's text around them. "template": the opening and the closing of an
   * assistant's turn. "model": sampled ids, or the text of a scripted turn.
   */
  source: "template" | "environment" | "model";
  start: number;
  end: number;
  /** One an id, natural logarithms; of sampled ids only. */
  logProbs?: Float32Array;
}

/** What was sampled for one turn. */
export interface SampledTurn {
  tokens: readonly number[];
  /** One a token. */
  logProbs?: Float32Array | undefined;
}

export interface AppendOptions {
  /**
   * What becomes of the reasoning before the answer. "template" (default): it is left out where the
   * template drops it from the history. "kept": it stays, after the generation prompt that it was
   * sampled from.
   */
  reasoning?: "template" | "kept";
}

/** A conversation as JSON. Log probabilities are base64 of little-endian float32. */
export interface ConversationJson {
  version: 1;
  tokens: number[];
  segments: { source: Segment["source"]; start: number; end: number; logProbs?: string }[];
  turns: Turn[];
  system: boolean;
  tools?: ToolSchema[];
}

/** What forks share; nothing in it changes but the memo. */
interface Context {
  tokenizer: Tokenizer;
  template: ChatTemplate;
  system: boolean;
  tools: readonly ToolSchema[] | undefined;
  /** Ids of openings, by the role before, and of the closing. */
  remembered: Map<string, readonly number[]>;
}

/** Where the ids of a turn end, and whose turn it was. */
interface Turn {
  end: number;
  role: Message["role"];
}

export class Conversation {
  readonly #context: Context;
  /** The ids are the first `#length` of these. Forks read those of what they were forked from, until they grow. */
  #tokens: number[];
  #length: number;
  /** Whether it may grow in place: no other conversation does. */
  #owner: boolean;
  readonly #segments: Segment[];
  readonly #turns: Turn[];

  private constructor(
    context: Context,
    tokens: number[],
    segments: Segment[],
    turns: Turn[],
    length = tokens.length,
    owner = true,
  ) {
    this.#context = context;
    this.#tokens = tokens;
    this.#length = length;
    this.#owner = owner;
    this.#segments = segments;
    this.#turns = turns;
  }

  /**
   * Opens a conversation: `messages` as the template renders them, with its default system message if it has
   * one.
   *
   * @param messages at least one
   * @throws NlacError ERR_VALUE without messages, ERR_TOKENIZER if the template refuses them
   */
  static start(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: readonly Message[],
    options: { tools?: readonly ToolSchema[] | undefined } = {},
  ): Conversation {
    const last = messages.at(-1);
    if (last === undefined)
      throw new NlacError("ERR_VALUE", "A conversation starts with at least one message.");
    const context: Context = {
      tokenizer,
      template,
      system: messages.some(({ role }) => role === "system"),
      tools: options.tools,
      remembered: new Map(),
    };
    const conversation = new Conversation(context, [], [], []);
    conversation.#push("environment", template.encode(tokenizer, messages, { tools: options.tools }));
    conversation.#endTurn(last.role);
    return conversation;
  }

  /** All ids so far. A new array. */
  get tokens(): number[] {
    return this.#tokens.slice(0, this.#length);
  }

  /** Where the ids came from: adjacent runs that together cover `tokens`. */
  get segments(): readonly Readonly<Segment>[] {
    return this.#segments;
  }

  /** Number of ids. */
  get length(): number {
    return this.#length;
  }

  /**
   * Appends messages. Several of a tool's messages in a row belong in one call, for templates that set them
   * out as one turn. An assistant's message is appended as by `appendAssistantText`.
   *
   * @throws NlacError ERR_TOKENIZER if the template refuses them here
   */
  append(...messages: readonly Message[]): this {
    for (let i = 0; i < messages.length; ) {
      const message = messages[i]!;
      if (message.role === "assistant") {
        this.appendAssistantText(message.content);
        i++;
        continue;
      }
      let end = i + 1;
      while (end < messages.length && messages[end]!.role !== "assistant") end++;
      const run = messages.slice(i, end);
      const { template, tokenizer } = this.#context;
      this.#push("environment", template.encodeContinuation(tokenizer, this.#here(), run));
      this.#endTurn(run.at(-1)!.role);
      i = end;
    }
    return this;
  }

  /** The ids to generate from: those so far and the opening of an assistant's turn. A new array. */
  prompt(): number[] {
    return this.tokens.concat(this.#opening());
  }

  /**
   * Appends an assistant's turn: its opening, the ids sampled, and what of the template's closing
   * the model did not generate. A stop id replaces the closing up to and including its control
   * token.
   *
   * Where the template drops the reasoning of earlier turns, this turn is appended without it, as
   * the next state holds it: its answer as sampled, after the template's opening of an earlier
   * turn. The ids of the reasoning are the caller's to keep. Some of these templates show it until
   * the next question, between calls of tools too; here it goes at once, so that the states of an
   * episode extend one another.
   *
   * @throws NlacError ERR_SHAPE if the log probabilities are not one a token
   */
  appendGeneration(sampled: SampledTurn, { reasoning = "template" }: AppendOptions = {}): this {
    const { tokens, logProbs } = sampled;
    if (logProbs !== undefined && logProbs.length !== tokens.length) {
      throw new NlacError(
        "ERR_SHAPE",
        `There are ${logProbs.length} log probabilities for ${tokens.length} tokens.`,
      );
    }
    const { template, tokenizer } = this.#context;
    const form = reasoning === "template" ? template.reasoning : undefined;
    if (form === undefined) return this.#appendTurn(this.#opening(), sampled);
    const { head, from } = keptOf(tokenizer, tokens, form);
    const answer = { tokens: tokens.slice(from), logProbs: logProbs?.slice(from) };
    return this.#appendTurn(this.#openingOfEarlier(), answer, head);
  }

  /**
   * A call as the template writes it in an assistant's turn, to be appended as a generation.
   *
   * @throws NlacError ERR_CONFIG if the template knows no calls with arguments in JSON
   */
  writeCall(call: CallText): { text: string; tokens: number[] } {
    const { template, tokenizer } = this.#context;
    return template.writeCall(tokenizer, this.#here(), call);
  }

  /**
   * The ids that `appendGeneration` appends of a sampled turn; none of one that was cut off while
   * it reasoned.
   */
  withoutReasoning({ tokens }: SampledTurn): number[] {
    const { template, tokenizer } = this.#context;
    if (template.reasoning === undefined) return [...tokens];
    const { head, from } = keptOf(tokenizer, tokens, template.reasoning);
    return [...head, ...tokens.slice(from)];
  }

  /** Appends a call as `writeCall` writes it. Throws as `writeCall`. */
  appendCall(call: CallText): this {
    const { thought } = call;
    const kept = thought === undefined ? call : { ...call, thought: this.keptText(thought) };
    return this.#appendTurn(this.#openingOfText(), this.writeCall(kept));
  }

  /**
   * Appends an assistant's turn of recorded or scripted text, encoded as ordinary text; reasoning
   * as in `appendGeneration`.
   */
  appendAssistantText(text: string): this {
    const tokens = this.#context.tokenizer.encode(this.keptText(text));
    return this.#appendTurn(this.#openingOfText(), { tokens });
  }

  /**
   * What of an assistant's text stays in the history: all of it, or what follows the reasoning that
   * the template drops.
   */
  keptText(text: string): string {
    const { reasoning } = this.#context.template;
    return reasoning === undefined ? text : keptTextOf(text, reasoning);
  }

  /**
   * Puts other ids in the place of the assistant's turn that was appended last, e.g. a thought rewritten.
   *
   * @throws NlacError ERR_VALUE if the last turn is not one that was appended by `appendGeneration`
   */
  replaceLastGeneration(sampled: SampledTurn, options: AppendOptions = {}): this {
    const before = this.#turns.at(-2);
    if (before === undefined || this.#turns.at(-1)?.role !== "assistant") {
      throw new NlacError(
        "ERR_VALUE",
        "The last turn is not an assistant's, so there is nothing to replace.",
      );
    }
    this.#truncate(before.end);
    return this.appendGeneration(sampled, options);
  }

  /** A copy that grows on its own. The ids are copied when it does: the states of an episode hold them once. */
  fork(): Conversation {
    const [segments, turns] = [[...this.#segments], [...this.#turns]];
    return new Conversation(this.#context, this.#tokens, segments, turns, this.#length, false);
  }

  /**
   * A copy of the first `length` ids.
   *
   * @param length where a turn ends
   * @throws NlacError ERR_VALUE if no turn ends there
   */
  prefix(length: number): Conversation {
    if (!this.#turns.some(({ end }) => end === length)) {
      throw new NlacError("ERR_VALUE", `No turn of the conversation ends after ${length} tokens.`);
    }
    const copy = this.fork();
    copy.#truncate(length);
    return copy;
  }

  /** What `fromJSON` reads; `JSON.stringify` calls it. */
  toJSON(): ConversationJson {
    const { system, tools } = this.#context;
    return {
      version: 1,
      tokens: this.tokens,
      segments: this.#segments.map(({ source, start, end, logProbs }) => ({
        source,
        start,
        end,
        ...(logProbs === undefined ? {} : { logProbs: floatsToBase64(logProbs) }),
      })),
      turns: this.#turns.map((turn) => ({ ...turn })),
      system,
      ...(tools === undefined ? {} : { tools: [...tools] }),
    };
  }

  /**
   * A conversation from `toJSON`'s result, to go on with the same tokenizer and template.
   *
   * @throws NlacError ERR_VALUE if the parts do not fit together
   */
  static fromJSON(json: ConversationJson, tokenizer: Tokenizer, template: ChatTemplate): Conversation {
    if (json.version !== 1) {
      throw new NlacError(
        "ERR_VALUE",
        `Conversations of version ${JSON.stringify(json.version)} cannot be read.`,
      );
    }
    const segments = json.segments.map(({ source, start, end, logProbs }) => ({
      source,
      start,
      end,
      ...(logProbs === undefined ? {} : { logProbs: floatsFromBase64(logProbs) }),
    }));
    let covered = 0;
    for (const { start, end, logProbs } of segments) {
      const fits =
        start === covered && end > start && (logProbs === undefined || logProbs.length === end - start);
      if (!fits)
        throw new NlacError("ERR_VALUE", `A segment of the conversation, [${start}, ${end}), does not fit.`);
      covered = end;
    }
    const ends = json.turns.map(({ end }) => end);
    if (covered !== json.tokens.length || ends.at(-1) !== covered) {
      throw new NlacError("ERR_VALUE", "The conversation's segments and turns do not cover its tokens.");
    }
    const context: Context = {
      tokenizer,
      template,
      system: json.system,
      tools: json.tools,
      remembered: new Map(),
    };
    return new Conversation(
      context,
      [...json.tokens],
      segments,
      json.turns.map((turn) => ({ ...turn })),
    );
  }

  #here() {
    const { system, tools } = this.#context;
    return { after: this.#turns.at(-1)!.role, system, tools };
  }

  #opening(): readonly number[] {
    const { template, tokenizer } = this.#context;
    const here = this.#here();
    return this.#remember(`after ${here.after}`, () =>
      template.encodeContinuation(tokenizer, here, [], { addGenerationPrompt: true }),
    );
  }

  /** Of a turn that was not sampled. */
  #openingOfText(): readonly number[] {
    return this.#context.template.reasoning === undefined ? this.#opening() : this.#openingOfEarlier();
  }

  #appendTurn(
    opening: readonly number[],
    { tokens, logProbs }: SampledTurn,
    head: readonly number[] = [],
  ): this {
    this.#push("template", opening);
    this.#push("model", head);
    this.#push("model", tokens, logProbs);
    this.#push("template", this.#closingAfter(tokens));
    this.#endTurn("assistant");
    return this;
  }

  /** As the template opens a turn that others follow. */
  #openingOfEarlier(): readonly number[] {
    const { template, tokenizer } = this.#context;
    const here = this.#here();
    return this.#remember(`earlier, after ${here.after}`, () => template.encodeOpening(tokenizer, here));
  }

  /** What of the closing is still to be written after `tokens`. */
  #closingAfter(tokens: readonly number[]): readonly number[] {
    const { template, tokenizer } = this.#context;
    const closing = this.#remember("closing", () => template.encodeClosing(tokenizer, this.#here()));
    for (let written = Math.min(closing.length, tokens.length); written > 0; written--) {
      const tail = tokens.slice(-written);
      if (tail.every((id, i) => id === closing[i])) return closing.slice(written);
    }
    const last = tokens.at(-1);
    if (last === undefined || !tokenizer.eosTokenIds.includes(last)) return closing;
    return closing.slice(closing.findIndex((id) => tokenizer.specialIds.has(id)) + 1);
  }

  #remember(key: string, make: () => number[]): readonly number[] {
    let ids = this.#context.remembered.get(key);
    if (ids === undefined) {
      ids = make();
      this.#context.remembered.set(key, ids);
    }
    return ids;
  }

  #push(source: Segment["source"], ids: readonly number[], logProbs?: Float32Array): void {
    if (ids.length === 0) return;
    if (!this.#owner) {
      this.#tokens = this.tokens;
      this.#owner = true;
    }
    const start = this.#length;
    for (const id of ids) this.#tokens.push(id);
    const end = this.#tokens.length;
    this.#length = end;
    this.#segments.push({ source, start, end, ...(logProbs === undefined ? {} : { logProbs }) });
  }

  #endTurn(role: Message["role"]): void {
    this.#turns.push({ end: this.#length, role });
  }

  /** Back to where a turn ends. Segments never cross the end of a turn. Forks may still read the ids behind it. */
  #truncate(length: number): void {
    this.#length = length;
    this.#owner = false;
    while ((this.#segments.at(-1)?.end ?? 0) > length) this.#segments.pop();
    while ((this.#turns.at(-1)?.end ?? 0) > length) this.#turns.pop();
  }
}

/** As bytes of little-endian float32. */
export function floatsToBase64(values: Float32Array): string {
  const bytes = Buffer.alloc(values.length * 4);
  for (const [i, value] of values.entries()) bytes.writeFloatLE(value, i * 4);
  return bytes.toString("base64");
}

export function floatsFromBase64(text: string): Float32Array {
  const bytes = Buffer.from(text, "base64");
  return Float32Array.from({ length: bytes.length >> 2 }, (_, i) => bytes.readFloatLE(i * 4));
}
