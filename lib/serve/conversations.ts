/**
 * Conversations by what was said in them. A client sends the whole conversation with every request, as messages; here it
 * is found again as the ids that the model has seen and written, and grows by appending. So what was sampled stays as
 * sampled, and the model's caches hold.
 */

import { createHash } from "node:crypto";
import type { Message, ToolSchema } from "../environments/contract.ts";
import type { Learner } from "../learner.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { Said } from "./protocol.ts";

/** What serving asks of a learner. */
export type ServedModel = Pick<
  Learner,
  "generate" | "conversation" | "encode" | "decode" | "tokenizer" | "maxPositions"
>;

export interface OpenedConversation {
  /** Up to the last message of the request. */
  conversation: Conversation;
  /** Name of the conversation that was found again; undefined where there was none. */
  known?: string;
  /** What was said since. */
  fresh: Said[];
  /** Name of the conversation as it now is. */
  key: string;
}

export class Conversations {
  readonly #model: ServedModel;
  readonly #mostTokens: number;
  /** Least recently used first. */
  readonly #kept = new Map<string, Conversation>();
  #tokens = 0;

  /** @param mostTokens ids that the kept conversations may have together */
  constructor(model: ServedModel, mostTokens: number) {
    this.#model = model;
    this.#mostTokens = mostTokens;
  }

  /** Throws NlacError ERR_TOKENIZER or ERR_CONFIG where the chat template refuses the messages or the tools. */
  open(messages: readonly Said[], tools: readonly ToolSchema[]): OpenedConversation {
    const keys: string[] = [];
    for (const message of messages) keys.push(digest(keys.at(-1) ?? digest("", tools), sameness(message)));
    const key = keys.at(-1)!;

    let last = messages.length - 1;
    while (last >= 0 && !(messages[last]!.role === "assistant" && this.#kept.has(keys[last]!))) last--;
    if (last < 0) return { conversation: this.#render(messages, tools), fresh: [...messages], key };
    const known = keys[last]!;
    const kept = this.#kept.get(known)!;
    this.#kept.delete(known);
    this.#kept.set(known, kept);
    const fresh = messages.slice(last + 1);
    return { conversation: this.#append(kept.fork(), fresh), known, fresh, key };
  }

  /** Keeps the conversation `key` with the model's turn appended; returns its name. */
  keep(key: string, said: Said, conversation: Conversation): string {
    const name = digest(key, sameness(said));
    this.#tokens += conversation.length - (this.#kept.get(name)?.length ?? 0);
    this.#kept.delete(name);
    this.#kept.set(name, conversation);
    for (const [oldest, { length }] of this.#kept) {
      if (this.#tokens <= this.#mostTokens || oldest === name) break;
      this.#kept.delete(oldest);
      this.#tokens -= length;
    }
    return name;
  }

  #render(messages: readonly Said[], tools: readonly ToolSchema[]): Conversation {
    const first = messages.findIndex(({ role }) => role === "assistant");
    const opening = first < 0 ? messages : messages.slice(0, Math.max(1, first));
    const conversation = this.#model.conversation(opening.map(plain), tools.length === 0 ? {} : { tools });
    return this.#append(conversation, messages.slice(opening.length));
  }

  #append(conversation: Conversation, messages: readonly Said[]): Conversation {
    let others: Message[] = [];
    const flush = () => {
      if (others.length > 0) conversation.append(...others);
      others = [];
    };
    for (const message of messages) {
      if (message.call === undefined) {
        others.push(plain(message));
        continue;
      }
      flush();
      const { call, content } = message;
      conversation.appendGeneration(conversation.writeCall({ ...call, thought: content.trim() }));
    }
    flush();
    return conversation;
  }
}

const plain = ({ role, content }: Said): Message => ({ role, content });

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
