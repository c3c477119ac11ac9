/** The tools of a server that speaks the Model Context Protocol, for `defineEnvironment`. */

import { NlacError } from "../../base/errors.ts";
import { type Tool, ToolError, tool } from "../define-tool.ts";

/** What is used of a client of `@modelcontextprotocol/sdk`. */
export interface McpClient {
  listTools(page?: { cursor?: string }): Promise<{
    tools: { name: string; description?: string; inputSchema: Record<string, unknown> }[];
    nextCursor?: string;
  }>;
  callTool(
    call: { name: string; arguments: Record<string, unknown> },
    resultSchema?: undefined,
    options?: { signal?: AbortSignal; timeout?: number },
  ): Promise<object>;
}

/** A client that is connected; a program to start, which is spoken to by its input and output; or a server's address. */
export type McpSource =
  | McpClient
  | { command: string; args?: string[]; env?: Record<string, string>; cwd?: string }
  | { url: string | URL; headers?: Record<string, string> };

export interface McpTools {
  tools: Tool[];
  /** Ends the connection, and the program that was started; a later call opens it again. A client that was given stays. */
  close(): Promise<void>;
}

/** Tools of one server; more are taken for a server that never ends its list. */
const maxTools = 1000;

/**
 * What a server offers. An error in a tool's result is told to the agent; a server that is gone or too slow is a fault of
 * the environment. Episodes share the server: one whose tools keep state is opened for every episode, in `start`.
 *
 * @param options.timeout milliseconds that a call may take; default 60,000
 * @throws NlacError ERR_CONFIG without the package @modelcontextprotocol/sdk, where `source` is no client; ERR_ENVIRONMENT
 *   for a server that cannot be reached; ERR_VALUE for a tool whose name or schema cannot be used
 */
export async function mcpTools(source: McpSource, options: { timeout?: number } = {}): Promise<McpTools> {
  const { timeout = 60_000 } = options;
  const connection = new Connection(source);
  try {
    const offered = await toolsOf(await connection.client());
    const tools = offered.map(({ name, description = "", inputSchema }) =>
      tool({
        name,
        description,
        parameters: inputSchema,
        timeout,
        handler: async (args, { signal }) =>
          call(await connection.client(), { name, arguments: args }, signal, timeout),
      }),
    );
    return { tools, close: () => connection.close() };
  } catch (error) {
    await connection.close();
    throw error;
  }
}

type Offered = Awaited<ReturnType<McpClient["listTools"]>>["tools"];

async function toolsOf(client: McpClient): Promise<Offered> {
  const tools: Offered = [];
  let cursor: string | undefined;
  do {
    const page = await client.listTools(cursor === undefined ? {} : { cursor });
    tools.push(...page.tools);
    cursor = page.nextCursor;
    if (tools.length > maxTools || (cursor !== undefined && page.tools.length === 0))
      throw new NlacError(
        "ERR_ENVIRONMENT",
        `The MCP server lists more than ${maxTools} tools, or has no end of them.`,
      );
  } while (cursor !== undefined);
  return tools;
}

/** The code of JSON-RPC for parameters that the server refuses. */
const invalidParams = -32602;

async function call(
  client: McpClient,
  request: { name: string; arguments: Record<string, unknown> },
  signal: AbortSignal,
  timeout: number,
): Promise<string> {
  let result: { content?: unknown; structuredContent?: unknown; isError?: boolean };
  try {
    result = await client.callTool(request, undefined, { signal, timeout });
  } catch (error) {
    if ((error as { code?: unknown }).code === invalidParams) throw new ToolError((error as Error).message);
    throw error;
  }
  const text = textOf(result);
  if (result.isError === true) throw new ToolError(text);
  return text;
}

/** What a model can read of a result. */
function textOf({ content, structuredContent }: { content?: unknown; structuredContent?: unknown }): string {
  const parts = (Array.isArray(content) ? content : []) as {
    type: string;
    text?: string;
    resource?: { text?: string };
  }[];
  if (parts.length === 0 && structuredContent !== undefined) return JSON.stringify(structuredContent);
  return parts.map(({ type, text, resource }) => text ?? resource?.text ?? `(${type})`).join("\n");
}

/** The way to a server, opened when it is needed. */
class Connection {
  readonly #source: McpSource;
  #opened: Promise<{ client: McpClient; close(): Promise<void> }> | undefined;

  constructor(source: McpSource) {
    this.#source = source;
  }

  async client(): Promise<McpClient> {
    if ("listTools" in this.#source) return this.#source;
    this.#opened ??= open(this.#source);
    try {
      return (await this.#opened).client;
    } catch (error) {
      this.#opened = undefined;
      throw error;
    }
  }

  async close(): Promise<void> {
    const opened = this.#opened;
    this.#opened = undefined;
    await (await opened?.catch(() => undefined))?.close();
  }
}

async function open(source: Exclude<McpSource, McpClient>) {
  const { Client, transport } = await transportTo(source);
  const client = new Client({ name: "nlac", version: "1" });
  try {
    await client.connect(transport);
  } catch (error) {
    await client.close().catch(() => undefined);
    const server =
      "command" in source ? [source.command, ...(source.args ?? [])].join(" ") : String(source.url);
    throw new NlacError(
      "ERR_ENVIRONMENT",
      `The MCP server ${JSON.stringify(server)} cannot be used: ${(error as Error).message}`,
      { cause: error },
    );
  }
  return { client: client as McpClient, close: () => client.close() };
}

async function transportTo(source: Exclude<McpSource, McpClient>) {
  try {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    if ("command" in source) {
      const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
      return { Client, transport: new StdioClientTransport(source) };
    }
    const { StreamableHTTPClientTransport } = await import(
      "@modelcontextprotocol/sdk/client/streamableHttp.js"
    );
    const requestInit = source.headers === undefined ? {} : { headers: source.headers };
    return { Client, transport: new StreamableHTTPClientTransport(new URL(source.url), { requestInit }) };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ERR_MODULE_NOT_FOUND") throw error;
    throw new NlacError(
      "ERR_CONFIG",
      "mcpTools needs the package @modelcontextprotocol/sdk: npm install @modelcontextprotocol/sdk",
      { cause: error },
    );
  }
}
