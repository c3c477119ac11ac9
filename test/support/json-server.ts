/** A server on this machine that records JSON requests and answers as a test says. */

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

export interface JsonRequest {
  method: string;
  path: string;
  headers: NodeJS.Dict<string | string[]>;
  // biome-ignore lint/suspicious/noExplicitAny: each test knows the bodies it expects
  body: any;
}

/** Status and JSON of an answer; "never" leaves the request open. */
export type JsonAnswer = { status?: number; json?: unknown } | "never";

export interface JsonServer {
  url: string;
  requests: JsonRequest[];
  close(): Promise<void>;
}

export async function jsonServer(
  answer: (request: JsonRequest) => JsonAnswer = () => ({}),
): Promise<JsonServer> {
  const requests: JsonRequest[] = [];
  const server = createServer(async (incoming, response) => {
    let text = "";
    for await (const chunk of incoming) text += chunk;
    const { method = "", url: path = "", headers } = incoming;
    const request = { method, path, headers, body: text === "" ? undefined : JSON.parse(text) };
    requests.push(request);
    const given = answer(request);
    if (given === "never") return;
    response.writeHead(given.status ?? 200, { "content-type": "application/json" });
    response.end(JSON.stringify(given.json ?? {}));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
