/** A served request and its reply, as the recording receives them. */

import type { Generation } from "../model/language-model.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { Held } from "./conversation-cache.ts";
import type { OpenEpisode, Relations } from "./open-episode.ts";
import type { Said } from "./protocol.ts";

/** The episode that a request belongs to. */
export interface Place extends Relations {
  /** The episode's name. */
  name: string;
  named: boolean;
  /** The episode, if it exists, and its conversation at the time of the request. */
  episode?: OpenEpisode;
  before?: Conversation;
  /** The part of the request's messages that the episode contains. */
  held?: Held;
}

/** A turn that was served. */
export interface ServedTurn {
  /** The request's messages, and the cache key of the conversation. */
  messages: readonly Said[];
  asked: string;
  /** Length of the conversation before the model's turn, in tokens. */
  state: number;
  generation: Generation;
  /** Whether tool calls were parsed. */
  calls: boolean;
  /** The conversation after the turn, and its cache key. */
  conversation: Conversation;
  key: string;
  /** Version of the weights that generated it. */
  version?: string | undefined;
  /** Whether the client requested that version. */
  pinned?: boolean | undefined;
  /** Whether a grammar excluded tokens: that of `response_format`, or of a required call. */
  constrained?: boolean | undefined;
}
