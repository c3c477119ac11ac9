/**
 * The customer of an episode, behind one interface: played by a language model (user-simulated.ts) or by rules
 * (user-scripted.ts). open-user.ts opens either.
 */

import type { Usage } from "../../contract/environment.ts";
import type { TauBenchTask } from "./tasks.ts";

/** Said by a customer who is done; the episode ends there. */
export const stopWord = "###STOP###";

export interface ConversationOptions {
  /** Every random choice of the conversation is a function of this. */
  seed: number;
  signal?: AbortSignal;
}

/** One customer talking to one agent. */
export interface Conversation {
  /** What the customer says first. */
  readonly opening: string;
  /**
   * What the customer says to the agent's `text`; contains `stopWord` when the conversation is over. Throws ERR_SERVICE,
   * and ERR_ABORTED when the signal fires.
   */
  respond(text: string): Promise<string>;
}

/** Whoever plays the customers. One for all episodes; a conversation holds what belongs to one. */
export interface User {
  start(task: TauBenchTask, options: ConversationOptions): Promise<Conversation>;
  /** Of all conversations so far; absent where no LLM service is behind the customers. */
  usage?(): Usage;
  /** Gives back what it holds. Absent: it holds nothing. */
  close?(): Promise<void>;
}
