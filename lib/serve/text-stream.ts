/** Streams completions as server-sent events. */

import type { HttpBindings } from "@hono/node-server";
import type { Context } from "hono";
import { streamSSE } from "hono/streaming";
import { afterRunning } from "../base/timer.ts";
import { TextStream } from "../tokens/text-stream.ts";
import type { Tokenizer } from "../tokens/tokenizer.ts";
import { inPieces, pieceLength } from "./json-response.ts";
import type { ChatRequest, CompletionRequest } from "./protocol.ts";
import { asRequestError, loggedFailure, RequestError } from "./request-error.ts";

export type OnToken = (text: number, token: number) => void;

/** Whose model writes, and who reports failures. */
interface Sender {
  learner: { readonly tokenizer?: Tokenizer | undefined };
  log(line: string): void;
}

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
  { learner, log }: Sender,
  c: Context,
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
  const texts = Array.from({ length: count }, () => new TextStream(learner.tokenizer!, request.stop));
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
      if (over.status === 500) log(loggedFailure(error));
    })
    .finally(() => wake());
  return streamSSE(c, async (stream) => {
    const send = async (text: string) => {
      const inTime = afterRunning(stallMs, () => (c.env as HttpBindings).outgoing.destroy());
      try {
        await stream.write(text);
      } finally {
        inTime();
      }
    };
    const sendEvent = async (event: object) => {
      // Long events, with log probabilities, are sent in pieces. JSON text has no line breaks.
      let text = "data: ";
      for await (const piece of inPieces(event)) {
        if (stream.aborted) return;
        if (text.length >= pieceLength) {
          await send(text);
          text = "";
        }
        text += piece;
      }
      await send(`${text}\n\n`);
    };
    for (const event of parts.begin()) await sendEvent(event);
    for (;;) {
      const [next] = pending;
      if (next !== undefined) {
        pending.delete(next[0]);
        await sendEvent(parts.piece!(...next));
      } else if (over !== undefined) break;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
    if (over instanceof RequestError) return sendEvent(over.body);
    const { written } = over;
    const sent = texts.map((text) => (parts.piece === undefined ? "" : text.sent));
    for (const event of parts.end(written, sent)) await sendEvent(event);
    if (request.stream_options?.include_usage) await sendEvent(parts.usage(written));
    await send("data: [DONE]\n\n");
  });
}
