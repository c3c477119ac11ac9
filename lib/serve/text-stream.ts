/** Streams completions as server-sent events. */

import type { Context } from "hono";
import { streamSSE } from "hono/streaming";
import type { Tokenizer } from "../tokens/tokenizer.ts";
import { asRequestError, type ChatRequest, type CompletionRequest, RequestError } from "./protocol.ts";

export type OnToken = (text: number, token: number) => void;

/**
 * Streams the pieces of the completions, the final events, the usage if requested, and the end.
 *
 * @param count number of completions
 * @param write starts the generation. Throws its immediate errors; later ones are the last event
 * @param parts the events; without `piece`, completions are sent as a whole
 */
export async function streamTexts<T>(
  c: Context,
  tokenizer: Tokenizer,
  request: ChatRequest | CompletionRequest,
  count: number,
  write: (onToken: OnToken) => Promise<T>,
  parts: {
    begin: () => object[];
    piece?: (text: number, piece: string) => object;
    end: (written: T, sent: readonly string[]) => object[];
    usage: (written: T) => object;
  },
): Promise<Response> {
  const texts = Array.from({ length: count }, () => new TextStream(tokenizer, request.stop));
  const queue: object[] = parts.begin();
  let wake = (): void => {};
  let over: "whole" | RequestError | undefined;
  void write((i, token) => {
    const piece = texts[i]!.add(token);
    if (piece === "" || parts.piece === undefined) return;
    queue.push(parts.piece(i, piece));
    wake();
  })
    .then((written) => {
      const sent = texts.map((text) => (parts.piece === undefined ? "" : text.sent));
      queue.push(...parts.end(written, sent));
      if (request.stream_options?.include_usage) queue.push(parts.usage(written));
      over = "whole";
    })
    .catch((error: unknown) => {
      over = asRequestError(error);
    })
    .finally(() => wake());
  return streamSSE(c, async (stream) => {
    for (;;) {
      const event = queue.shift();
      if (event !== undefined) await stream.writeSSE({ data: JSON.stringify(event) });
      else if (over !== undefined) break;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
    await stream.writeSSE({ data: over instanceof RequestError ? JSON.stringify(over.body) : "[DONE]" });
  });
}

/** Splits a completion into final pieces: whole characters, and nothing that may yet be cut off. */
export class TextStream {
  readonly #tokenizer: Tokenizer;
  readonly #stop: readonly string[];
  /** Holds the bytes of an incomplete character. */
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  /** Decoded text that may be the start of a stop string. */
  #held = "";
  #ended = false;
  /** All text that was returned: a prefix of the generation's text. */
  sent = "";

  constructor(tokenizer: Tokenizer, stop: readonly string[]) {
    this.#tokenizer = tokenizer;
    this.#stop = stop;
  }

  /** The text that can be sent after another token; may be empty. */
  add(token: number): string {
    const { specialIds, eosTokenIds } = this.#tokenizer;
    if (this.#ended || specialIds.has(token) || eosTokenIds.includes(token)) return "";
    this.#held += this.#decoder.decode(this.#tokenizer.bytesOf(token), { stream: true });
    if (this.#stop.some((stop) => this.#held.includes(stop))) {
      this.#ended = true; // the rest is sent at the end, correctly cut
      return "";
    }
    const safe = this.#held.length - this.#possibleStop();
    const piece = this.#held.slice(0, safe);
    this.#held = this.#held.slice(safe);
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
