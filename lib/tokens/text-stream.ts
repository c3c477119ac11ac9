/** The text of a generation while its tokens arrive. */

import { CompletionReader } from "./completion-text.ts";
import type { StreamDecoder } from "./decoder.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** Splits a completion into final pieces: whole characters, and nothing that may yet be cut off. */
export class TextStream {
  readonly #tokenizer: Tokenizer;
  readonly #stop: readonly string[];
  /** Holds the bytes of an incomplete character. */
  readonly #decoder: StreamDecoder;
  readonly #reader: CompletionReader;
  /** Decoded text that may be the start of a stop string. */
  #held = "";
  #ended = false;
  /** Whether the first character is known; some tokenizers drop a space there. */
  #started = false;
  /** All text that was returned: a prefix of the generation's text. */
  sent = "";

  constructor(tokenizer: Tokenizer, stop: readonly string[]) {
    this.#tokenizer = tokenizer;
    this.#decoder = tokenizer.stream();
    this.#reader = new CompletionReader(tokenizer);
    this.#stop = stop;
  }

  /** The text that can be sent after another token; may be empty. */
  add(token: number): string {
    if (this.#ended || this.#tokenizer.eosTokenIds.includes(token)) return "";
    const parts = this.#reader.read(token);
    if (parts.length === 0) return "";
    for (const part of parts) this.#held += "id" in part ? this.#decoder.add(part.id) : part.text;
    if (this.#stop.some((stop) => this.#held.includes(stop))) {
      this.#ended = true; // the rest is sent at the end, correctly cut
      return "";
    }
    const safe = this.#held.length - this.#possibleStop();
    let piece = this.#held.slice(0, safe);
    this.#held = this.#held.slice(safe);
    if (piece !== "" && !this.#started) piece = this.#tokenizer.withoutFirstSpace(piece);
    this.#started ||= safe > 0;
    this.sent += piece;
    return piece;
  }

  /** Length of the longest suffix of the held text that starts a stop string. */
  #possibleStop(): number {
    let longest = 0;
    for (const stop of this.#stop)
      for (let length = Math.min(stop.length - 1, this.#held.length); length > longest; length--)
        if (this.#held.endsWith(stop.slice(0, length))) longest = length;
    return longest;
  }
}
