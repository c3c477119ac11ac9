/**
 * Conversations by what was said in them. A client sends the whole conversation with every request, as messages; here it
 * is found again as the ids that the model has seen and written, and grows by appending. So what was sampled stays as
 * sampled, and the model's caches hold.
 */

import { createHash } from "node:crypto";
import type { Message, ToolSchema } from "../contract/environment.ts";
import type { Learner } from "../learner/learner.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { Said } from "./protocol.ts";

/** What serving asks of a learner. */
export type ServedModel = Pick<
  Learner,
  "generate" | "conversation" | "encode" | "decode" | "tokenizer" | "maxPositions"
>;

/** A conversation as ids, and how many of a request's messages it holds. */
export interface Held {
  conversation: Conversation;
  messages: number;
}

/** Names of the conversation as it was after each of the messages. */
export function namesOf(messages: readonly Said[], tools: readonly ToolSchema[]): string[] {
  let name = digest("", tools);
  return messages.map((message) => {
    name = nameAfter(name, message);
    return name;
  });
}

/** Name of the conversation `name` once `said` is appended. */
export function nameAfter(name: string, said: Said): string {
  return digest(name, sameness(said));
}

export class Conversations {
  readonly #model: ServedModel;
  readonly #maxHeldTokens: number;
  /** By their names, least recently used first. */
  readonly #kept = new Map<string, Conversation>();
  #tokens = 0;
  #readsTools: boolean | undefined;

  /** @param maxHeldTokens ids that the kept conversations may have together */
  constructor(model: ServedModel, maxHeldTokens: number) {
    this.#model = model;
    this.#maxHeldTokens = maxHeldTokens;
  }

  /**
   * The conversation up to the last message, on the ids of `held`, or else of what is kept of it.
   *
   * @param names those of `namesOf`
   * @throws NlacError ERR_TOKENIZER or ERR_CONFIG where the chat template refuses the messages or the tools
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
   * The messages without the reasoning that the chat template drops from the history: a client may
   * send it back or leave it out, and means the same conversation.
   */
  kept(messages: readonly Said[]): Said[] {
    const conversation = this.#model.conversation([{ role: "user", content: "?" }]);
    return messages.map((said) =>
      said.role === "assistant" ? { ...said, content: conversation.keptText(said.content) } : said,
    );
  }

  /** Whether the model's chat template tells the model of tools; else it would never know of them. */
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
      // How the template writes a call is the same in any conversation.
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

/** Clients read a call's arguments, and write them again in a spelling of their own. */
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
