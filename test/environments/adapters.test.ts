import { fileURLToPath } from "node:url";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { ListToolsRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { tool as aiTool, jsonSchema } from "ai";
import { describe, expect, it, vi } from "vitest";
import { z } from "zod";
import { aiTools } from "../../lib/environments/adapters/ai.ts";
import { type McpClient, type McpSource, mcpTools } from "../../lib/environments/adapters/mcp.ts";
import { checkEnvironment } from "../../lib/environments/check.ts";
import { defineEnvironment } from "../../lib/environments/define.ts";
import type { Tool } from "../../lib/environments/define-tool.ts";
import { deskServer } from "../support/mcp-server.ts";
import { closing, listen, openTools } from "../support/mcp-tools.ts";

const environment = (tools: readonly Tool<object>[], dispose?: () => Promise<void>) =>
  defineEnvironment({
    name: "desk",
    tasks: { train: ["a"], test: ["b"] },
    taskId: (task: string) => task,
    start: (task: string): object => ({ task }),
    prompt: (task: string) => task,
    tools,
    score: () => 1,
    maxTurns: 8,
    ...(dispose && { dispose }),
  });

/** The answers to calls within one episode. */
async function answers(tools: readonly Tool<object>[], ...calls: [name: string, args: object][]) {
  const episode = await environment(tools).start("a", { seed: 0 });
  const results = [];
  for (const [name, args] of calls) {
    const tool = { name, arguments: args as Record<string, unknown> };
    const { observation, info } = await episode.step({ text: JSON.stringify(tool), tool });
    results.push(`${info.toolError === true ? "refused: " : ""}${observation[0]!.content}`);
  }
  await episode.close();
  return results;
}

const program = {
  command: process.execPath,
  args: ["--import", "jiti/register", fileURLToPath(new URL("../support/mcp-server.ts", import.meta.url))],
};

async function inMemory(): Promise<Client> {
  const [near, far] = InMemoryTransport.createLinkedPair();
  const client = new Client({ name: "test", version: "1" });
  await Promise.all([deskServer().connect(far), client.connect(near)]);
  return closing(client);
}

async function overHttp(): Promise<{ url: string }> {
  const serve = async (
    ...[request, response]: Parameters<StreamableHTTPServerTransport["handleRequest"]>
  ) => {
    const each = new StreamableHTTPServerTransport({
      sessionIdGenerator: undefined,
      enableJsonResponse: true,
    });
    await deskServer().connect(each as never);
    await each.handleRequest(request, response);
  };
  return { url: `${await listen((request, response) => void serve(request, response))}/mcp` };
}

describe.each([
  ["a client", inMemory],
  ["a program", async () => program],
  ["an address", overHttp],
] as [string, () => Promise<McpSource>][])("mcpTools of %s", (_, source) => {
  it("are described and called as the server specifies", async () => {
    const { tools } = await openTools(await source());
    expect(tools.map(({ schema }) => schema.name)).toEqual([
      "find",
      "note",
      "picture",
      "count",
      "wait",
      "leave",
    ]);
    expect(tools[0]!.schema).toMatchObject({
      description: "How many of an item are in stock.",
      parameters: { type: "object", properties: { item: { type: "string" } }, required: ["item"] },
    });
    expect(
      await answers(
        tools,
        ["find", { item: "pen" }],
        ["find", { item: "cup" }],
        ["find", { item: 3 }],
        ["picture", {}],
        ["count", {}],
      ),
    ).toEqual([
      "3 pens",
      "refused: Error: cup is unknown",
      "refused: Error: arguments.item must be string",
      "(image)\na caption",
      '{"count":5}',
    ]);
  });
});

describe("mcpTools", () => {
  it("make an environment that satisfies the contract, and a closed server is started again", async () => {
    const server = await openTools(program);
    const harmless = server.tools.filter(({ schema }) => ["find", "picture", "count"].includes(schema.name));
    expect(await checkEnvironment(environment(harmless, server.close))).toEqual([]);
    expect(await answers(server.tools, ["note", { text: "a" }])).toEqual(["1 notes"]);
    await server.close();
    expect(await answers(server.tools, ["note", { text: "a" }])).toEqual(["1 notes"]);
  });

  it("a server that disconnects or times out is a fault of the environment", async () => {
    const { tools } = await openTools(program, { timeout: 300 });
    await expect(answers(tools, ["leave", {}])).rejects.toMatchObject({ code: "ERR_ENVIRONMENT" });
    const slow = await openTools(program, { timeout: 50 });
    await expect(answers(slow.tools, ["wait", {}])).rejects.toMatchObject({
      code: "ERR_ENVIRONMENT",
      message: expect.stringContaining('"wait"'),
    });
  });

  it.each([
    ["no such program", { command: "/no/such/program" }],
    ["a program that speaks otherwise", { command: process.execPath, args: ["-e", "process.exit(3)"] }],
    ["nobody there", { url: "http://127.0.0.1:9/mcp" }],
  ])("%s: the message names the server", async (_, source) => {
    await expect(mcpTools(source)).rejects.toMatchObject({
      code: "ERR_ENVIRONMENT",
      message: expect.stringMatching(/The MCP server ".*(program|process|127|node).*" cannot be used/),
    });
  });

  it("a server that does not list its tools, or never answers, is an error with a code", async () => {
    const [near, far] = InMemoryTransport.createLinkedPair();
    const silent = new Client({ name: "test", version: "1" });
    const server = new McpServer({ name: "silent", version: "1" });
    server.server.registerCapabilities({ tools: {} });
    server.server.setRequestHandler(ListToolsRequestSchema, () => new Promise(() => {}));
    await Promise.all([server.connect(far), silent.connect(near)]);
    closing(silent);
    await expect(mcpTools(silent, { timeout: 50 })).rejects.toMatchObject({
      code: "ERR_ENVIRONMENT",
      message: expect.stringMatching(/does not list its tools: .*timed out/),
    });
    await silent.close();
    await expect(mcpTools(silent)).rejects.toMatchObject({ code: "ERR_ENVIRONMENT" });
  });

  it("a misbehaving server is not trusted", async () => {
    const offering = (tool: object, nextCursor?: string) =>
      ({
        listTools: async () => ({ tools: [tool], nextCursor }),
        callTool: async () => ({}),
      }) as unknown as McpClient;
    const sound = { name: "a", inputSchema: { type: "object" } };
    await expect(mcpTools(offering(sound, "more"))).rejects.toMatchObject({ code: "ERR_ENVIRONMENT" });
    await expect(mcpTools(offering({ ...sound, name: "a b" }))).rejects.toMatchObject({ code: "ERR_VALUE" });
    await expect(mcpTools(offering({ ...sound, inputSchema: { type: 3 } }))).rejects.toMatchObject({
      code: "ERR_VALUE",
    });
    const { tools } = await mcpTools(offering(sound));
    expect(await answers(tools, ["a", {}])).toEqual(["(empty)"]);
  });

  it("says what to install if the package is missing", async () => {
    vi.doMock("@modelcontextprotocol/sdk/client/index.js", () => ({
      get Client() {
        throw Object.assign(new Error("not found"), { code: "ERR_MODULE_NOT_FOUND" });
      },
    }));
    try {
      await expect(mcpTools(program)).rejects.toMatchObject({
        code: "ERR_CONFIG",
        message: expect.stringContaining("npm install @modelcontextprotocol/sdk"),
      });
    } finally {
      vi.doUnmock("@modelcontextprotocol/sdk/client/index.js");
    }
  });
});

describe("aiTools", () => {
  const tools = {
    find: aiTool({
      description: "How many of an item are in stock.",
      inputSchema: z.object({ item: z.string(), near: z.boolean().default(true) }),
      execute: async ({ item, near }) => {
        if (item !== "pen") throw new Error(`${item} is unknown`);
        return { item, near };
      },
    }),
    add: aiTool({
      description: "Adds.",
      inputSchema: jsonSchema<{ a: number; b: number }>(
        {
          type: "object",
          properties: { a: { type: "number" }, b: { type: "number" } },
          required: ["a", "b"],
        },
        {
          validate: (value) => {
            const { a } = value as { a: number; b: number };
            return a < 100
              ? { success: true, value: value as { a: number; b: number } }
              : { success: false, error: new Error("a is too large") };
          },
        },
      ),
      execute: ({ a, b }) => a + b,
    }),
    parts: aiTool({
      description: "Gives parts.",
      inputSchema: z.object({}),
      async *execute() {
        yield "half";
        yield "whole";
      },
    }),
    state: aiTool({
      description: "Shows what it was given.",
      inputSchema: z.object({}),
      execute: (_, { experimental_context, abortSignal, toolCallId }) => [
        experimental_context,
        abortSignal?.aborted,
        toolCallId,
      ],
    }),
  };

  it("are described and called as by that package", async () => {
    const made = await aiTools(tools);
    expect(made.map(({ schema }) => schema.name)).toEqual(["find", "add", "parts", "state"]);
    expect(made[1]!.schema.parameters).toMatchObject({ type: "object", required: ["a", "b"] });
    expect(
      await answers(
        made,
        ["find", { item: "pen" }],
        ["find", { item: "cup" }],
        ["find", {}],
        ["add", { a: 1, b: 2.5 }],
        ["add", { a: 100, b: 0 }],
        ["parts", {}],
        ["state", {}],
      ),
    ).toEqual([
      '{"item":"pen","near":true}',
      "refused: Error: cup is unknown",
      "refused: Error: arguments must have required property 'item'",
      "3.5",
      "refused: Error: a is too large",
      "whole",
      '[{"task":"a"},false,"state-6"]',
    ]);
    const other = await answers(made, ["state", {}], ["state", {}]);
    expect(other.map((answer) => JSON.parse(answer)[2])).toEqual(["state-0", "state-1"]);
  });

  it("make an environment that satisfies the contract", async () => {
    const { find, add, parts } = tools;
    expect(await checkEnvironment(environment(await aiTools({ find, add, parts })))).toEqual([]);
  });

  it("are rejected without execute, or without a readable schema", async () => {
    const { find } = tools;
    for (const broken of [{ inputSchema: find.inputSchema }, { ...find, inputSchema: "text" }])
      await expect(aiTools({ broken })).rejects.toMatchObject({
        code: "ERR_VALUE",
        message: expect.stringContaining('"broken"'),
      });
  });

  it("are rejected with parts of that package that have no effect here", async () => {
    const { find } = tools;
    for (const part of [
      { needsApproval: true },
      { needsApproval: async () => true },
      { toModelOutput: () => ({ type: "text", value: "3 pens" }) },
    ])
      await expect(aiTools({ find: { ...find, ...part } })).rejects.toMatchObject({
        code: "ERR_VALUE",
        message: expect.stringContaining(Object.keys(part)[0]!),
      });
    expect(await aiTools({ find: { ...find, needsApproval: false } })).toHaveLength(1);
  });
});
