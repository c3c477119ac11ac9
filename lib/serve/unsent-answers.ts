/** Limits the memory of answers that clients read slowly, or not at all. */

import type { GenerateRequest, Generation } from "../model/language-model.ts";

/** Maximum size of all answers that are not sent yet, as `sizeOf` estimates it. */
const maxBytes = 256 * 2 ** 20;

/** The connection of a client: an HTTP response. */
interface Connection {
  readonly destroyed: boolean;
  destroy(): unknown;
  once(event: "close", listener: () => void): unknown;
}

export class UnsentAnswers {
  readonly #maxBytes: number;
  /** Their sizes, oldest first. */
  readonly #held = new Map<Connection, number>();
  #bytes = 0;

  constructor(most = maxBytes) {
    this.#maxBytes = most;
  }

  /**
   * Counts an answer until its response is sent or closed. If all of them take too much memory, the
   * clients that have been reading for longest are disconnected: one that reads at the speed of a
   * network is not among them.
   */
  hold(connection: Connection, bytes: number): void {
    if (connection.destroyed) return;
    const held = this.#held.get(connection);
    if (held === undefined) connection.once("close", () => this.#release(connection));
    this.#held.set(connection, (held ?? 0) + bytes);
    this.#bytes += bytes;
    for (const oldest of this.#held.keys()) {
      if (this.#bytes <= this.#maxBytes || oldest === connection) break;
      this.#release(oldest);
      oldest.destroy();
    }
  }

  #release(connection: Connection): void {
    this.#bytes -= this.#held.get(connection) ?? 0;
    this.#held.delete(connection);
  }
}

/** Bytes that an answer takes until it is sent, about: its prompts, tokens, texts and log probabilities. */
export function sizeOf(requests: readonly GenerateRequest[], generations: readonly Generation[]): number {
  // The completions of a prompt share its ids.
  const prompts = new Set(requests.map(({ tokens }) => tokens));
  let bytes = 0;
  for (const prompt of prompts) bytes += 8 * (prompt?.length ?? 0);
  for (const { tokens, text, topTokens } of generations)
    bytes += 12 * tokens.length + 2 * text.length + 8 * (topTokens?.length ?? 0);
  return bytes;
}
