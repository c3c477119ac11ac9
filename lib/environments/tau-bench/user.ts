/**
 * The interface of an episode's customer: played by a language model (user-simulated.ts) or by
 * rules (user-scripted.ts). open-user.ts opens either.
 */

import type { Usage } from "../../contract/environment.ts";
import type { TauBenchTask } from "./tasks.ts";

/** Said by a customer who is done; the episode then ends. */
export const stopWord = "###STOP###";

/** How a conversation starts. */
export interface ConversationOptions {
  /** Determines every random choice of the conversation. */
  seed: number;
  signal?: AbortSignal;
}

/** One customer talking to one agent. */
export interface Conversation {
  /** The customer's first message. */
  readonly opening: string;
  /**
   * The customer's reply to the agent's `text`; contains `stopWord` if the conversation is over.
   * Throws ERR_SERVICE, and ERR_ABORTED when the signal fires.
   */
  respond(text: string): Promise<string>;
}

/** Plays the customers of all episodes; a conversation has the state of one. */
export interface User {
  start(task: TauBenchTask, options: ConversationOptions): Promise<Conversation>;
  /** Usage of all conversations so far; absent without an LLM service. */
  usage?(): Usage;
  /** Frees resources. Absent if there are none. */
  close?(): Promise<void>;
}
