/**
 * A cache of conversations by their messages. Clients send the whole conversation with every
 * request; the cache finds it as the ids that the model has read and generated, and appends to it.
 * Sampled ids are thus never tokenized again, and the KV caches stay valid.
 */

import type { Learner } from "../learner/learner.ts";
import { Conversation } from "../tokens/conversation.ts";
import type { Asking, Reader } from "./reader.ts";
import type { ReadChat } from "./reading.ts";

/** Maximum number of cached conversations: a short one takes far more memory than its tokens. */
const maxKept = 16_384;

/** The parts of a learner that serving uses. */
export type ServedModel = Pick<Learner, "generate" | "decode" | "tokenizer" | "maxPositions"> & {
  /**
   * For a model whose weights change while it is served: admits a request to the current weights,
   * or to those of a kept version.
   */
  admit?(version?: string): Promise<Admission>;
  /** The names of the kept versions. */
  versions?(): readonly string[];
};

/** A request that may generate. Until it leaves, the weights stay as they are. */
export interface Admission {
  generate: Learner["generate"];
  /** The name of the weights; undefined for a model whose weights never change. */
  version?: string;
  /** Whether the client requested a version other than the current one. */
  pinned?: boolean;
  /** To be called once the request has ended; further calls have no effect. */
  leave(): void;
}

/** A cached conversation, and the number of a request's messages that it contains. */
export interface Held {
  conversation: Conversation;
  messages: number;
}

export class Conversations {
  readonly #model: ServedModel;
  readonly #reader: Reader;
  readonly #maxHeldTokens: number;
  /** By name, least recently used first. */
  readonly #kept = new Map<string, Conversation>();
  #tokens = 0;

  /** @param maxHeldTokens maximum total length of the cached conversations, in tokens */
  constructor(model: ServedModel, reader: Reader, maxHeldTokens: number) {
    this.#model = model;
    this.#reader = reader;
    this.#maxHeldTokens = maxHeldTokens;
  }

  /**
   * The conversation with all messages of a chat: continues `held`, or else a cached conversation.
   *
   * @param bytes size of the request
   * @throws NlacError ERR_TOKENIZER or ERR_CONFIG if the chat template refuses messages or tools
   */
  async open(
    { messages, tools, names }: ReadChat,
    bytes: number,
    asking: Asking,
    held: Held | undefined = this.#find(names),
  ): Promise<Conversation> {
    const after = held?.conversation.ending();
    const rest = messages.slice(held?.messages ?? 0);
    const begun = held?.conversation.fork();
    if (begun !== undefined && rest.length === 0) return begun;
    const known = held && { remembered: held.conversation.remembered };
    const rendering = { messages: rest, tools, after, ...known };
    const { conversation, remembered } = await this.#reader.render(rendering, bytes, asking);
    if (begun !== undefined) return begun.extend(conversation).remember(remembered);
    const { template } = this.#reader.inline;
    return Conversation.fromJSON(conversation, this.#model.tokenizer!, template).remember(remembered);
  }

  keep(name: string, conversation: Conversation): void {
    this.#tokens += conversation.length - (this.#kept.get(name)?.length ?? 0);
    this.#kept.delete(name);
    this.#kept.set(name, conversation);
    for (const [oldest, { length }] of this.#kept) {
      const isWithin = this.#tokens <= this.#maxHeldTokens && this.#kept.size <= maxKept;
      if (isWithin || oldest === name) break;
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
}
