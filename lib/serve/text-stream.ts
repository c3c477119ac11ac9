/** Streams completions as server-sent events. */

import type { HttpBindings } from "@hono/node-server";
import type { Context } from "hono";
import { streamSSE } from "hono/streaming";
import type { Tokenizer } from "../tokens/tokenizer.ts";
import { jsonInSlices } from "./json-response.ts";
import { asRequestError, type ChatRequest, type CompletionRequest, RequestError } from "./protocol.ts";

export type OnToken = (text: number, token: number) => void;

/** Milliseconds after which a client that reads nothing is disconnected. */
const stallMs = 60_000;

/**
 * Streams the pieces of the completions, the final events, the usage if requested, and the end. A
 * slow client gets longer pieces, so that nothing accumulates but text.
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
    end: (written: T, sent: readonly string[]) => Iterable<object>;
    usage: (written: T) => object;
  },
): Promise<Response> {
  const texts = Array.from({ length: count }, () => new TextStream(tokenizer, request.stop));
  /** Pieces that were not sent yet, by completion. */
  const pending = new Map<number, string>();
  let wake = (): void => {};
  let over: { written: T } | RequestError | undefined;
  void write((i, token) => {
    const piece = texts[i]!.add(token);
    if (piece === "" || parts.piece === undefined) return;
    pending.set(i, (pending.get(i) ?? "") + piece);
    wake();
  })
    .then((written) => {
      over = { written };
    })
    .catch((error: unknown) => {
      over = asRequestError(error);
    })
    .finally(() => wake());
  return streamSSE(c, async (stream) => {
    const send = async (data: string) => {
      const stalled = setTimeout(() => (c.env as HttpBindings).outgoing.destroy(), stallMs);
      try {
        await stream.writeSSE({ data });
      } finally {
        clearTimeout(stalled);
      }
    };
    const sendEvent = async (event: object) => send(await jsonInSlices(event));
    for (const event of parts.begin()) await sendEvent(event);
    for (;;) {
      const [next] = pending;
      if (next !== undefined) {
        pending.delete(next[0]);
        await sendEvent(parts.piece!(...next));
      } else if (over !== undefined) break;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
    if (over instanceof RequestError) return send(JSON.stringify(over.body));
    const { written } = over;
    const sent = texts.map((text) => (parts.piece === undefined ? "" : text.sent));
    for (const event of parts.end(written, sent)) await sendEvent(event);
    if (request.stream_options?.include_usage) await sendEvent(parts.usage(written));
    await send("[DONE]");
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
