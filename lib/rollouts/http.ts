/**
 * JSON over HTTP to inference servers. Not by fetch, because Node's gives up after five minutes
 * without an answer.
 */

import { Agent as HttpAgent, request as httpRequest } from "node:http";
import { Agent as HttpsAgent, request as httpsRequest } from "node:https";

/** A request that got no answer, or one with a status other than 2xx. */
export class HttpFault extends Error {
  /** Undefined if there was no answer. */
  readonly status: number | undefined;

  constructor(message: string, status?: number) {
    super(message);
    this.status = status;
  }

  /** The server does not have this call. */
  get isMissing(): boolean {
    return this.status === 404 || this.status === 405 || this.status === 501;
  }

  /** The server has no room for the request now. */
  get isBusy(): boolean {
    return this.status === 429 || this.status === 503;
  }

  /** A repeated request may succeed. */
  get isTransient(): boolean {
    return this.status === undefined || [408, 409, 425, 429].includes(this.status) || this.status >= 500;
  }
}

/** Milliseconds for a long text of a large model, behind a queue, and for loading weights. */
const longMs = 60 * 60_000;
/** Milliseconds for calls that a server answers at once. */
export const quickMs = 30_000;
/** Interval of TCP keep-alive probes, which detect a machine that has failed. */
const keepAliveMs = 30_000;

const agents = {
  "http:": new HttpAgent({ keepAlive: true }),
  "https:": new HttpsAgent({ keepAlive: true }),
};

/** Errors of a connection that the server has closed. */
const closed: readonly unknown[] = ["ECONNRESET", "EPIPE"];

/**
 * Sends a request; `body` makes it a POST. The header `authorization` has $NLAC_ROLLOUTS_KEY, if
 * set. It is sent again if the server closes a kept connection just then, as servers do after some
 * idle seconds.
 *
 * @returns the answer's JSON; undefined if it is empty or not JSON
 * @throws HttpFault; the signal's AbortError
 */
export function callServer(
  url: string,
  path: string,
  body?: object,
  signal?: AbortSignal,
  timeoutMs = body === undefined ? quickMs : longMs,
): Promise<unknown> {
  const address = new URL(url + path);
  const key = process.env.NLAC_ROLLOUTS_KEY;
  const text = body === undefined ? undefined : JSON.stringify(body);
  const send = address.protocol === "https:" ? httpsRequest : httpRequest;
  const fault = (why: string, status?: number) =>
    new HttpFault(`${body === undefined ? "GET" : "POST"} ${url}${path}: ${why}`, status);
  return new Promise((resolve, reject) => {
    const options = {
      method: body === undefined ? "GET" : "POST",
      headers: {
        ...(text === undefined
          ? {}
          : { "content-type": "application/json", "content-length": Buffer.byteLength(text) }),
        ...(key ? { authorization: `Bearer ${key}` } : {}),
      },
      timeout: timeoutMs,
      ...(signal && { signal }),
    };
    const fail = (error: Error) => reject(signal?.aborted ? error : fault(error.message));
    const ask = (agent: HttpAgent | HttpsAgent | false) => {
      const request = send(address, { ...options, agent });
      let answers = false;
      request.on("socket", (socket) => socket.setKeepAlive(true, keepAliveMs));
      request.on("timeout", () => request.destroy(new Error(`no answer in ${timeoutMs / 1000} seconds`)));
      request.on("error", (error: NodeJS.ErrnoException) => {
        const isUnread = request.reusedSocket && !answers && closed.includes(error.code);
        if (isUnread && !signal?.aborted) ask(false);
        else fail(error);
      });
      request.on("response", (response) => {
        answers = true;
        const chunks: Buffer[] = [];
        response.on("data", (chunk: Buffer) => chunks.push(chunk));
        response.on("error", fail);
        response.on("end", () => {
          const answer = Buffer.concat(chunks).toString("utf8");
          const status = response.statusCode ?? 0;
          if (status < 200 || status > 299) {
            reject(fault(`${status} ${answer.slice(0, 300).replaceAll(/\s+/g, " ")}`, status));
            return;
          }
          try {
            resolve(JSON.parse(answer));
          } catch {
            resolve(undefined);
          }
        });
      });
      request.end(text);
    };
    ask(agents[address.protocol as keyof typeof agents]);
  });
}
