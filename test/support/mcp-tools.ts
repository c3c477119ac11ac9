/** Servers of tools in tests: closed after each test. */

import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach } from "vitest";
import { type McpSource, type McpTools, mcpTools } from "../../lib/environments/adapters/mcp.ts";

const opened: { close(): Promise<unknown> }[] = [];
afterEach(async () => {
  for (const each of opened.splice(0)) await each.close();
});

/** Closes `each` after the test. */
export function closing<T extends { close(): Promise<unknown> }>(each: T): T {
  opened.push(each);
  return each;
}

export async function openTools(source: McpSource, options?: { timeout?: number }): Promise<McpTools> {
  return closing(await mcpTools(source, options));
}

/** An HTTP server on a free port. Returns its origin. */
export async function listen(answer: RequestListener): Promise<string> {
  const http = createServer(answer);
  await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
  closing({
    close: async () => {
      http.close();
      http.closeAllConnections();
    },
  });
  return `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
}
