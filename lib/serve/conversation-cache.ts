/**
 * A cache of conversations by their messages. Clients send the whole conversation with every
 * request; the cache finds it as the ids that the model has read and generated, and appends to it.
 * Sampled ids are thus never tokenized again, and the KV caches stay valid.
 */

import { createHash } from "node:crypto";
import type { Message, ToolSchema } from "../contract/environment.ts";
import type { Learner } from "../learner/learner.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { Said } from "./protocol.ts";

/** The parts of a learner that serving uses. */
export type ServedModel = Pick<
  Learner,
  "generate" | "conversation" | "encode" | "decode" | "tokenizer" | "maxPositions"
>;

/** A cached conversation, and the number of a request's messages that it contains. */
export interface Held {
  conversation: Conversation;
  messages: number;
}

/** Cache keys of the conversation after each message. */
export function namesOf(messages: readonly Said[], tools: readonly ToolSchema[]): string[] {
  let name = digest("", tools);
  return messages.map((message) => {
    name = nameAfter(name, message);
    return name;
  });
}

/** The cache key of conversation `name` with `said` appended. */
export function nameAfter(name: string, said: Said): string {
  return digest(name, sameness(said));
}

export class Conversations {
  readonly #model: ServedModel;
  readonly #maxHeldTokens: number;
  /** By name, least recently used first. */
  readonly #kept = new Map<string, Conversation>();
  #tokens = 0;
  #readsTools: boolean | undefined;

  /** @param maxHeldTokens maximum total length of the cached conversations, in tokens */
  constructor(model: ServedModel, maxHeldTokens: number) {
    this.#model = model;
    this.#maxHeldTokens = maxHeldTokens;
  }

  /**
   * The conversation with all `messages`: continues `held`, or else a cached conversation.
   *
   * @param names from `namesOf`
   * @throws NlacError ERR_TOKENIZER or ERR_CONFIG if the chat template refuses messages or tools
   */
  open(
    messages: readonly Said[],
    tools: readonly ToolSchema[],
    names: readonly string[],
    held: Held | undefined = this.#find(names),
  ): Conversation {
    if (held === undefined) return this.#render(messages, tools);
    return this.#append(held.conversation.fork(), messages.slice(held.messages));
  }

  /**
   * The messages without reasoning that the chat template drops from the history: clients may or
   * may not send it back, and mean the same conversation.
   */
  kept(messages: readonly Said[]): Said[] {
    const conversation = this.#model.conversation([{ role: "user", content: "?" }]);
    return messages.map((said) =>
      said.role === "assistant" ? { ...said, content: conversation.keptText(said.content) } : said,
    );
  }

  /** Whether the model's chat template shows tools to the model. */
  get readsTools(): boolean {
    const open = (tools: readonly ToolSchema[]) =>
      this.#model.conversation([{ role: "user", content: "?" }], { tools }).length;
    this.#readsTools ??= open([{ name: "probe", description: "", parameters: {} }]) !== open([]);
    return this.#readsTools;
  }

  keep(name: string, conversation: Conversation): void {
    this.#tokens += conversation.length - (this.#kept.get(name)?.length ?? 0);
    this.#kept.delete(name);
    this.#kept.set(name, conversation);
    for (const [oldest, { length }] of this.#kept) {
      if (this.#tokens <= this.#maxHeldTokens || oldest === name) break;
      this.#kept.delete(oldest);
      this.#tokens -= length;
    }
  }

  #find(names: readonly string[]): Held | undefined {
    const last = names.findLastIndex((name) => this.#kept.has(name));
    if (last < 0) return undefined;
    const name = names[last]!;
    const conversation = this.#kept.get(name)!;
    this.#kept.delete(name);
    this.#kept.set(name, conversation);
    return { conversation, messages: last + 1 };
  }

  #render(messages: readonly Said[], tools: readonly ToolSchema[]): Conversation {
    const first = messages.findIndex(({ role }) => role === "assistant");
    const opening = first < 0 ? messages : messages.slice(0, Math.max(1, first));
    const begin = (messages: Message[]) =>
      this.#model.conversation(messages, tools.length === 0 ? {} : { tools });
    const written = opening.map(({ role, content, call }): Message => {
      if (call === undefined) return { role, content };
      // The template formats a call in the same way in any conversation.
      const { text } = begin([{ role: "user", content: "" }]).writeCall({ ...call, thought: content.trim() });
      return { role, content: text };
    });
    return this.#append(begin(written), messages.slice(opening.length));
  }

  #append(conversation: Conversation, messages: readonly Said[]): Conversation {
    let others: Message[] = [];
    const flush = () => {
      if (others.length > 0) conversation.append(...others);
      others = [];
    };
    for (const { role, content, call } of messages) {
      if (call === undefined) {
        others.push({ role, content });
        continue;
      }
      flush();
      conversation.appendCall({ ...call, thought: content.trim() });
    }
    flush();
    return conversation;
  }
}

/** A message for comparison: arguments are parsed, because clients may format them differently. */
function sameness({ role, content, call }: Said): unknown {
  if (call === undefined) return [role, content];
  try {
    return [role, content, call.name, JSON.parse(call.arguments)];
  } catch {
    return [role, content, call.name, call.arguments];
  }
}

function digest(before: string, value: unknown): string {
  return createHash("sha256").update(before).update(JSON.stringify(value)).digest("hex");
}
