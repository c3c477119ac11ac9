/** A text as it is written, in pieces that are final: whole characters, and nothing that may yet be cut off. */

import type { ServedModel } from "./conversations.ts";

/** Ids of one character at most; more that make none are bytes that are no UTF-8. */
const longestCharacter = 8;

export class TextStream {
  readonly #model: ServedModel;
  readonly #stop: readonly string[];
  /** Ids whose text is not known yet. */
  #pending: number[] = [];
  /** Decoded, but perhaps the beginning of a stop string. */
  #held = "";
  #ended = false;
  /** All that was handed out: the beginning of the generation's text. */
  sent = "";

  constructor(model: ServedModel, stop: readonly string[]) {
    this.#model = model;
    this.#stop = stop;
  }

  /** What can be sent after another token; "" where nothing can. */
  add(token: number): string {
    if (this.#ended) return "";
    this.#pending.push(token);
    const text = this.#model.tokenizer!.decode(this.#pending, { skipSpecial: true });
    if (text.endsWith("\ufffd") && this.#pending.length < longestCharacter) return "";
    this.#pending = [];
    this.#held += text;
    if (this.#stop.some((stop) => this.#held.includes(stop))) {
      this.#ended = true; // the end of the text knows where it was cut
      return "";
    }
    const safe = this.#held.length - this.#possibleStop();
    const piece = this.#held.slice(0, safe);
    this.#held = this.#held.slice(safe);
    this.sent += piece;
    return piece;
  }

  /** Length of the longest end of the held text that begins a stop string. */
  #possibleStop(): number {
    let longest = 0;
    for (const stop of this.#stop)
      for (let length = Math.min(stop.length - 1, this.#held.length); length > longest; length--)
        if (this.#held.endsWith(stop.slice(0, length))) longest = length;
    return longest;
  }
}
