/**
 * A conversation as token ids. It grows by appending ids and is never rendered or tokenized again:
 * sampled tokens and their log probabilities stay as they are, and the template's text for a turn
 * is appended once. Reasoning is left out if the template drops it from the history. What the
 * template adds and drops comes from turn-format.ts.
 */

import { NlacError } from "../base/errors.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import {
  type ConversationJson,
  jsonAfter,
  partsOf,
  type Segment,
  type TurnEnd,
} from "./conversation-json.ts";
import { type CalledFunction, checkMessages } from "./messages.ts";
import { keptTextOf } from "./reasoning.ts";
import type { CallText, ChatTemplate, WrittenCalls } from "./template.ts";
import type { Tokenizer } from "./tokenizer.ts";
import { TurnFormat } from "./turn-format.ts";

/** The sampled tokens of one turn. */
export interface SampledTurn {
  tokens: readonly number[];
  /** One per token. */
  logProbs?: Float32Array | undefined;
}

/** How a generation is appended. */
export interface AppendOptions {
  /**
   * How to treat the reasoning before the answer. "template" (default): left out if the template
   * drops it from the history. "kept": it stays, after the generation prompt that it followed.
   */
  reasoning?: "template" | "kept";
}

/** The tokens of a conversation. They are only appended to, so that a prefix can be cached. */
export class Conversation {
  /** Shared by forks. */
  readonly #format: TurnFormat;
  /** The first `#length` of these are the ids. Forks share the array until they grow. */
  #tokens: number[];
  #length: number;
  /** Whether it may grow in place, because no other conversation does. */
  #owner: boolean;
  readonly #segments: Segment[];
  readonly #turns: TurnEnd[];

  private constructor(
    format: TurnFormat,
    tokens: number[],
    segments: Segment[],
    turns: TurnEnd[],
    length = tokens.length,
    owner = true,
  ) {
    this.#format = format;
    this.#tokens = tokens;
    this.#length = length;
    this.#owner = owner;
    this.#segments = segments;
    this.#turns = turns;
  }

  /**
   * Opens a conversation with `messages` as the template renders them, including its default system
   * message.
   *
   * @param messages at least one
   * @throws NlacError ERR_VALUE without messages, or for what is no message; ERR_TOKENIZER if the
   *   template refuses them
   */
  static start(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: readonly Message[],
    options: { tools?: readonly ToolSchema[] | undefined } = {},
  ): Conversation {
    const last = checkMessages(messages).at(-1);
    if (last === undefined)
      throw new NlacError("ERR_VALUE", "A conversation starts with at least one message.");
    const { tools } = options;
    const system = messages.some(({ role }) => role === "system");
    const format = new TurnFormat(tokenizer, template, system, tools);
    const conversation = new Conversation(format, [], [], []);
    conversation.#push("environment", template.encode(tokenizer, messages, { tools }));
    conversation.#endTurn(last.role);
    return conversation;
  }

  /** All ids, as a new array. */
  get tokens(): number[] {
    return this.#tokens.slice(0, this.#length);
  }

  /** The origins of the ids: adjacent segments that cover `tokens`. */
  get segments(): readonly Readonly<Segment>[] {
    return this.#segments;
  }

  /** The functions that the template describes. */
  get tools(): readonly ToolSchema[] {
    return this.#format.tools ?? [];
  }

  /** Number of ids. */
  get length(): number {
    return this.#length;
  }

  /**
   * Appends messages. Pass consecutive messages of tools in one call, because some templates render
   * them as one turn. An assistant's message is appended as by `appendAssistantText`.
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
      const { template, tokenizer } = this.#format;
      const here = this.#format.contextAfter(this.#last);
      this.#push("environment", template.encodeContinuation(tokenizer, here, run));
      const answersOnly = run.every(({ role }) => role === "tool");
      const answered = run.length - (here.after === "tool" ? 0 : 1);
      const calls = answersOnly ? here.calls : undefined;
      this.#endTurn(run.at(-1)!.role, calls?.slice(Math.min(answered, calls.length - 1)));
      i = end;
    }
    return this;
  }

  /** The prompt: all ids and the start of an assistant's turn, as a new array. */
  prompt(): number[] {
    return this.tokens.concat(this.#format.generationPrompt(this.#last));
  }

  /** Length of `prompt()`, without making it. */
  get promptLength(): number {
    return this.#length + this.#format.generationPrompt(this.#last).length;
  }

  /**
   * Appends an assistant's turn: its start, the sampled ids, and the part of the template's end
   * that the model did not generate. A stop id replaces the end up to and including its control
   * token.
   *
   * If the template drops the reasoning of earlier turns, the turn is appended without it: the
   * answer as sampled, after the template's start of an earlier turn. If reasoning is a message of
   * its own, the template's end of an earlier turn replaces the stop id too. Store the ids of the
   * reasoning yourself. Some of these templates keep it until the next question, even between tool
   * calls; here it is dropped at once, so that each state of an episode is a prefix of the next.
   *
   * A turn of calls keeps its sampled ids too, and ends as the template ends such turns.
   *
   * @throws NlacError ERR_SHAPE if the number of log probabilities is not that of the tokens
   */
  appendGeneration(sampled: SampledTurn, { reasoning = "template" }: AppendOptions = {}): this {
    const { tokens, logProbs } = sampled;
    if (logProbs !== undefined && logProbs.length !== tokens.length) {
      throw new NlacError(
        "ERR_SHAPE",
        `There are ${logProbs.length} log probabilities for ${tokens.length} tokens.`,
      );
    }
    const { head, from, to, calls } = this.#format.kept(tokens, reasoning);
    const kept = { tokens: tokens.slice(from, to), logProbs: logProbs?.slice(from, to) };
    return this.#appendTurn(this.#format.opening(this.#last, calls, reasoning), kept, calls, head);
  }

  /**
   * A call in the template's format for an assistant's turn, to be appended as a generation.
   *
   * @throws NlacError ERR_CONFIG if the template does not support calls in a form that is known
   */
  writeCall(call: CallText): WrittenCalls {
    return this.writeCalls([call]);
  }

  /**
   * Several calls of one turn; a thought stands with the first one. If the generation prompt opens the
   * reasoning, the ids begin with its end. Throws as `writeCall`.
   */
  writeCalls(calls: readonly CallText[]): WrittenCalls {
    return this.#writeCalls(calls, "generated");
  }

  #writeCalls(calls: readonly CallText[], place: "history" | "generated"): WrittenCalls {
    const { template, tokenizer, system, tools } = this.#format;
    const written = template.writeCalls(tokenizer, { system, tools }, calls);
    const lead = this.#format.endOfReasoning(this.#last, place);
    return { ...written, tokens: [...lead, ...written.tokens] };
  }

  /**
   * The ids of an answer as the model writes it after the generation prompt, with what its template
   * has between messages. If the prompt opens the reasoning, they begin with its end.
   */
  writeAnswer(text: string): number[] {
    const { template, tokenizer } = this.#format;
    const start = template.reasoning?.messages?.answer;
    const answer = this.#format.answer(this.#last, text, "generated");
    return start === undefined ? answer : [...tokenizer.encodeTemplate(start), ...answer];
  }

  /**
   * The ids that `appendGeneration` appends for a sampled turn; none if it was cut off during its
   * reasoning.
   */
  withoutReasoning({ tokens }: SampledTurn): number[] {
    const { head, from, to } = this.#format.kept(tokens);
    return [...head, ...tokens.slice(from, to)];
  }

  /** Appends a turn of calls in the format of `writeCalls`. Throws as `writeCall`. */
  appendCalls(calls: readonly CallText[]): this {
    const form = this.#format.callForm;
    const kept = calls.map(({ thought = "", ...call }) =>
      // A thought that is a message of its own is reasoning.
      form?.beforeThought ? call : { ...call, thought: this.keptText(thought) },
    );
    const called = this.#format.calledOf(calls);
    return this.#appendTurn(
      this.#format.opening(this.#last, called),
      this.#writeCalls(kept, "history"),
      called,
    );
  }

  /**
   * Appends an assistant's turn of recorded or scripted text, encoded as ordinary text. Treats
   * reasoning as `appendGeneration` does.
   */
  appendAssistantText(text: string): this {
    const tokens = this.#format.answer(this.#last, this.keptText(text), "history");
    return this.#appendTurn(this.#format.openingOfText(this.#last), { tokens });
  }

  /**
   * The part of an assistant's text that stays in the history: all of it, or the text after
   * reasoning that the template drops.
   */
  keptText(text: string): string {
    const { reasoning } = this.#format.template;
    return reasoning === undefined ? text : keptTextOf(text, reasoning);
  }

  /**
   * Replaces the ids of the last assistant's turn, for example after its thought was rewritten.
   *
   * @throws NlacError ERR_VALUE if the last turn was not appended by `appendGeneration`
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

  /**
   * An independent copy. Its ids are copied only when it grows: states of an episode share them.
   */
  fork(): Conversation {
    const [segments, turns] = [[...this.#segments], [...this.#turns]];
    return new Conversation(this.#format, this.#tokens, segments, turns, this.#length, false);
  }

  /**
   * A copy of the first `length` ids.
   *
   * @param length the end of a turn
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

  /** The input of `fromJSON`; for `JSON.stringify`. */
  toJSON(): ConversationJson {
    const { tools } = this.#format;
    return { ...this.#jsonAfter(0), ...(tools === undefined ? {} : { tools: [...tools] }) };
  }

  /**
   * What this conversation has beyond the turns that it shares with an earlier state of itself:
   * `kept` is their number. Positions in `rest` count from their end; `rest` has no tools.
   */
  since(earlier: Conversation): { kept: number; rest: ConversationJson } {
    let kept = 0;
    // Forks share the objects of their turns, and nothing else does.
    while (kept < this.#turns.length && this.#turns[kept] === earlier.#turns[kept]) kept++;
    return { kept, rest: this.#jsonAfter(kept) };
  }

  #jsonAfter(kept: number): ConversationJson {
    const [tokens, length, segments, turns] = [this.#tokens, this.#length, this.#segments, this.#turns];
    return jsonAfter({ tokens, length, segments, turns }, kept, this.#format.system);
  }

  /**
   * A conversation of one placeholder id that continues like this one, so that another thread can
   * render what follows, for `extend`.
   */
  ending(): ConversationJson {
    const { system, tools } = this.#format;
    return {
      version: 1,
      tokens: [0],
      segments: [{ source: "environment", start: 0, end: 1 }],
      turns: [{ ...this.#last, end: 1 }],
      system,
      ...(tools === undefined ? {} : { tools: [...tools] }),
    };
  }

  /** Appends everything after the placeholder of an `ending()` that has grown. */
  extend({ tokens, segments, turns }: ConversationJson): this {
    const offset = this.#length - 1;
    for (const { source, start, end } of segments.slice(1)) this.#push(source, tokens.slice(start, end));
    for (const turn of turns.slice(1)) this.#turns.push({ ...turn, end: offset + turn.end });
    return this;
  }

  /** Ids of the template around turns that were rendered so far, by where they stand. */
  get remembered(): ReadonlyMap<string, readonly number[]> {
    return this.#format.remembered;
  }

  /**
   * Takes over the `remembered` ids of a conversation with the same tokenizer, template and tools.
   */
  remember(rendered: ReadonlyMap<string, readonly number[]>): this {
    for (const [key, ids] of rendered) this.#format.remembered.set(key, ids);
    return this;
  }

  /**
   * Restores a conversation from `toJSON`, with the same tokenizer and template.
   *
   * @throws NlacError ERR_VALUE if the parts are inconsistent
   */
  static fromJSON(json: ConversationJson, tokenizer: Tokenizer, template: ChatTemplate): Conversation {
    const { segments, turns } = partsOf(json);
    const format = new TurnFormat(tokenizer, template, json.system, json.tools);
    return new Conversation(format, [...json.tokens], segments, turns);
  }

  /** The last turn, which the next one follows. */
  get #last(): TurnEnd {
    return this.#turns.at(-1)!;
  }

  #appendTurn(
    opening: readonly number[],
    { tokens, logProbs }: SampledTurn,
    calls?: readonly CalledFunction[],
    head: readonly number[] = [],
  ): this {
    this.#push("template", opening);
    this.#push("model", head);
    this.#push("model", tokens, logProbs);
    this.#push("template", this.#format.closingAfter(tokens, calls));
    this.#endTurn("assistant", calls);
    return this;
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

  #endTurn(role: Message["role"], calls?: readonly CalledFunction[]): void {
    this.#turns.push({ end: this.#length, role, ...(calls === undefined ? {} : { calls }) });
  }

  /**
   * Truncates to the end of a turn. Segments never span it. Forks may still use the ids behind it.
   */
  #truncate(length: number): void {
    this.#length = length;
    this.#owner = false;
    while ((this.#segments.at(-1)?.end ?? 0) > length) this.#segments.pop();
    while ((this.#turns.at(-1)?.end ?? 0) > length) this.#turns.pop();
  }
}
