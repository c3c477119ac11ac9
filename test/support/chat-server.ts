/** A server that speaks as much of OpenAI's API as a chat service asks for, on this machine. */

import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";

export interface ChatRequest {
  messages: { role: string; content: string }[];
  temperature: number;
  max_tokens: number;
  seed?: number;
}

export type Answer = {
  status?: number;
  text?: string;
  /** Default "stop". */
  finish?: string | null;
  /** Milliseconds before anything is answered. */
  delay?: number;
  usage?: { prompt_tokens: number; completion_tokens: number };
  headers?: Record<string, string>;
  /**
   * The fault of the body: "cut", the connection breaks within it; "short", it ends early;
   * "stall", its second half never comes; "page", it is no JSON.
   */
  body?: "cut" | "short" | "stall" | "page";
  /** Called when it is sent to a client that still waits for it. */
  onSent?: () => void;
};

export interface ChatServer {
  baseURL: string;
  /** Requests so far. */
  calls: () => number;
  /** The most requests that were under way at once. */
  mostAtOnce: () => number;
  close(): Promise<void>;
}

/** `handler` answers each request; a `status` is a failure. */
export async function chatServer(handler: (body: ChatRequest, call: number) => Answer): Promise<ChatServer> {
  let calls = 0;
  let underWay = 0;
  let mostAtOnce = 0;
  const server = createServer(async (request: IncomingMessage, response) => {
    mostAtOnce = Math.max(mostAtOnce, ++underWay);
    response.once("close", () => underWay--);
    let text = "";
    for await (const chunk of request) text += chunk;
    const { status, body, finish = "stop", headers, ...reply } = handler(JSON.parse(text), calls++);
    if (reply.delay !== undefined) await new Promise((resolve) => setTimeout(resolve, reply.delay));
    await new Promise(setImmediate); // to notice clients that have disconnected
    if (response.destroyed) return;
    const message = { role: "assistant", content: reply.text ?? "" };
    const answer = JSON.stringify(
      status === undefined
        ? { choices: [{ message, finish_reason: finish }], usage: reply.usage }
        : { error: { message: "out of order" } },
    );
    response.writeHead(status ?? 200, {
      "content-type": body === "page" ? "text/html" : "application/json",
      ...(body === "cut" ? { "content-length": answer.length } : {}),
      ...headers,
    });
    const half = answer.slice(0, answer.length / 2);
    if (body === "cut") response.write(half, () => response.destroy());
    else if (body === "stall") response.write(half);
    else response.end(body === "short" ? half : body === "page" ? "<html>" : answer);
    reply.onSent?.();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    baseURL: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    calls: () => calls,
    mostAtOnce: () => mostAtOnce,
    close: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
