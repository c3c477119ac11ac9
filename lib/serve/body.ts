/** Receives the bodies of requests, within a limit for each and one for all together. */

import type { IncomingMessage } from "node:http";
import type { HttpBindings } from "@hono/node-server";
import type { Context } from "hono";
import { badRequest, RequestError } from "./request-error.ts";

/** Bodies of the largest size that may be held at a time. */
const bodiesAtOnce = 8;
/** Bytes up to which a body is received however much is held: clients with large ones exclude no others. */
const alwaysReceived = 8 * 2 ** 10;

export class Bodies {
  readonly #maxBytes: number;
  #held = 0;

  /** @param maxBytes maximum length of one body */
  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /**
   * Calls `use` with the request's body, which counts as held until `use` is done.
   *
   * @throws RequestError of status 413 for a body that is too long, 415 for one whose content-type
   *   is not JSON, 429 if others take too much memory, 400 if the client disconnects
   */
  async with<T>(c: Context, use: (body: Uint8Array) => Promise<T>): Promise<T> {
    const { incoming } = c.env as HttpBindings;
    const type = c.req.header("content-type")?.split(";")[0]?.trim().toLowerCase();
    if (type !== "application/json")
      throw new RequestError(
        415,
        "The request's content-type must be application/json.",
        "unsupported_media_type",
      );
    if (Number(c.req.header("content-length") ?? 0) > this.#maxBytes) throw this.#tooLarge();
    const received = { bytes: 0 };
    try {
      return await use(await this.#receive(c, incoming as IncomingMessage, received));
    } finally {
      this.#held -= received.bytes;
    }
  }

  /** Leaves a body that is refused to the HTTP server, which drains it or closes the connection. */
  #receive(c: Context, incoming: IncomingMessage, received: { bytes: number }): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    return new Promise((resolve, reject) => {
      const refuse = (error: RequestError) => {
        incoming.off("data", take);
        incoming.pause();
        chunks.length = 0;
        reject(error);
      };
      const brokenOff = () => refuse(badRequest("The request is incomplete.", null, "incomplete_body"));
      const take = (chunk: Buffer) => {
        received.bytes += chunk.length;
        this.#held += chunk.length;
        chunks.push(chunk);
        if (received.bytes > this.#maxBytes) refuse(this.#tooLarge());
        else if (received.bytes > alwaysReceived && this.#held > bodiesAtOnce * this.#maxBytes)
          refuse(tooMany(c));
      };
      incoming.on("data", take);
      incoming.once("end", () => resolve(joined(chunks, received.bytes)));
      incoming.once("error", brokenOff);
      incoming.once("close", brokenOff);
    });
  }

  #tooLarge(): RequestError {
    const message = `A request may have ${this.#maxBytes} bytes at most.`;
    return new RequestError(413, message, "request_too_large");
  }
}

function tooMany(c: Context): RequestError {
  c.header("retry-after", "1");
  const message = "Requests that are being read take too much memory; come back later.";
  return new RequestError(429, message, "queue_full");
}

/**
 * The chunks in an array that shares its memory with nothing, so that a thread can take it over.
 */
function joined(chunks: readonly Uint8Array[], bytes: number): Uint8Array {
  const whole = new Uint8Array(bytes);
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}
