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
  delay?: number;
  usage?: { prompt_tokens: number; completion_tokens: number };
};

export interface ChatServer {
  baseURL: string;
  /** Requests so far. */
  calls: () => number;
  close(): Promise<void>;
}

/** `handler` answers each request; a `status` is a failure, `delay` is in milliseconds. */
export async function chatServer(handler: (body: ChatRequest, call: number) => Answer): Promise<ChatServer> {
  let calls = 0;
  const server = createServer(async (request: IncomingMessage, response) => {
    let text = "";
    for await (const chunk of request) text += chunk;
    const reply = handler(JSON.parse(text), calls++);
    await new Promise((resolve) => setTimeout(resolve, reply.delay ?? 0));
    response.writeHead(reply.status ?? 200, { "content-type": "application/json", "retry-after-ms": "1" });
    response.end(
      JSON.stringify(
        reply.status === undefined
          ? { choices: [{ message: { role: "assistant", content: reply.text ?? "" } }], usage: reply.usage }
          : { error: { message: "out of order" } },
      ),
    );
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    baseURL: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    calls: () => calls,
    close: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
