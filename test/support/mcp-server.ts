/**
 * A server of the Model Context Protocol for tests: a small desk. Run as a program, it speaks by
 * its input and output.
 */

import { fileURLToPath } from "node:url";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

export function deskServer() {
  const server = new McpServer({ name: "desk", version: "1.0.0" });
  const text = (content: string) => ({ content: [{ type: "text" as const, text: content }] });
  let notes = 0;
  server.registerTool(
    "find",
    {
      description: "How many of an item are in stock.",
      inputSchema: { item: z.string(), near: z.boolean().optional() },
    },
    ({ item }) => (item === "pen" ? text("3 pens") : { ...text(`${item} is unknown`), isError: true }),
  );
  server.registerTool("note", { description: "Takes a note.", inputSchema: { text: z.string() } }, () =>
    text(`${++notes} notes`),
  );
  server.registerTool("picture", { description: "Shows a picture." }, () => ({
    content: [
      { type: "image" as const, data: "AAAA", mimeType: "image/png" },
      { type: "resource" as const, resource: { uri: "file:///a", text: "a caption" } },
    ],
  }));
  server.registerTool(
    "count",
    { description: "Counts.", inputSchema: {}, outputSchema: { count: z.number() } },
    () => ({ content: [], structuredContent: { count: 5 } }),
  );
  server.registerTool("wait", { description: "Waits." }, () => new Promise(() => {}));
  server.registerTool("leave", { description: "Ends the server." }, () => process.exit(1));
  return server;
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  await deskServer().connect(new StdioServerTransport());
