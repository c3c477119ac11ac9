/** Adapter for the tools of a Model Context Protocol server, for `defineEnvironment`. */

import { messageOf, NlacError } from "../../base/errors.ts";
import { maxDelayMs } from "../../base/timer.ts";
import { type Tool, ToolError, tool } from "../define-tool.ts";
import { fetchFromServer } from "./mcp-fetch.ts";

/** The part of a client of `@modelcontextprotocol/sdk` that the adapter uses. */
export interface McpClient {
  listTools(
    page?: { cursor?: string },
    options?: { timeout?: number },
  ): Promise<{
    tools: { name: string; description?: string; inputSchema: Record<string, unknown> }[];
    nextCursor?: string;
  }>;
  callTool(
    call: { name: string; arguments: Record<string, unknown> },
    resultSchema?: undefined,
    options?: { signal?: AbortSignal; timeout?: number },
  ): Promise<object>;
}

/** A connected client; a program to start, which communicates over stdio; or a server's address. */
export type McpSource =
  | McpClient
  | { command: string; args?: string[]; env?: Record<string, string>; cwd?: string }
  | { url: string | URL; headers?: Record<string, string> };

/** The tools of an MCP server. */
export interface McpTools {
  tools: Tool[];
  /**
   * Closes the connection and a program that was started; a later call reopens it. A client that
   * the caller passed stays open.
   */
  close(): Promise<void>;
}

/** Most tools of one server; a longer list is considered endless. */
const maxTools = 1000;
/** Maximum length of the list of tools as JSON: each prompt contains it, and its schemas are compiled. */
const maxListLength = 1_000_000;
/** Maximum length of a result. */
const maxResultLength = 1_000_000;
/** Length of a server's messages in errors, which are recorded. */
const maxMessageLength = 500;

/**
 * Adapts a server's tools. An error in a tool's result is reported to the agent, as is a result that
 * is too long; a server that disconnects or times out is a fault of the environment, and is connected
 * again by the next call. Episodes share the server. If its tools have state, open one per episode,
 * in `start`.
 *
 * @param options.timeout timeout of a call, and of each page of the list of tools, in milliseconds;
 *   default 60,000
 * @throws NlacError ERR_CONFIG if `source` is not a client and the package
 *   @modelcontextprotocol/sdk is not installed, and for an unusable address; ERR_ENVIRONMENT for a
 *   server that cannot be reached or does not list its tools; ERR_VALUE for a tool with an unusable
 *   name or schema
 */
export async function mcpTools(source: McpSource, options: { timeout?: number } = {}): Promise<McpTools> {
  const { timeout = 60_000 } = options;
  // A timer's limit: with more, the SDK's timer would fire at once.
  const requestTimeout = Math.min(timeout, maxDelayMs);
  const connection = new Connection(source);
  try {
    const offered = await toolsOf(await connection.client(), requestTimeout);
    const tools = offered.map(({ name, description = "", inputSchema }) =>
      tool({
        name,
        description,
        parameters: inputSchema,
        timeout,
        handler: (args, { signal }) => call(connection, { name, arguments: args }, signal, requestTimeout),
      }),
    );
    return { tools, close: () => connection.close() };
  } catch (error) {
    await connection.close();
    throw error;
  }
}

type Offered = Awaited<ReturnType<McpClient["listTools"]>>["tools"];

async function toolsOf(client: McpClient, timeout: number): Promise<Offered> {
  const tools: Offered = [];
  let length = 0;
  let cursor: string | undefined;
  do {
    const page = await listPage(client, cursor, timeout);
    tools.push(...page.tools);
    cursor = page.nextCursor;
    length += JSON.stringify(page.tools).length;
    if (length > maxListLength)
      throw new NlacError(
        "ERR_ENVIRONMENT",
        `The MCP server's list of tools has more than ${maxListLength} characters.`,
      );
    if (tools.length > maxTools || (cursor !== undefined && page.tools.length === 0))
      throw new NlacError(
        "ERR_ENVIRONMENT",
        `The MCP server lists more than ${maxTools} tools, or its list does not end.`,
      );
  } while (cursor !== undefined);
  return tools;
}

async function listPage(client: McpClient, cursor: string | undefined, timeout: number) {
  try {
    return await client.listTools(cursor === undefined ? {} : { cursor }, { timeout });
  } catch (error) {
    throw new NlacError(
      "ERR_ENVIRONMENT",
      `The MCP server does not list its tools: ${shortMessageOf(error)}`,
      { cause: error },
    );
  }
}

/** JSON-RPC's error code for invalid parameters. */
const invalidParams = -32602;

/** The status of a server that has forgotten the session, for example because it was restarted. */
const unknownSession = 404;

async function call(
  connection: Connection,
  request: { name: string; arguments: Record<string, unknown> },
  signal: AbortSignal,
  timeout: number,
): Promise<string> {
  const client = await connection.client();
  let result: { content?: unknown; structuredContent?: unknown; isError?: boolean };
  try {
    result = await client.callTool(request, undefined, { signal, timeout });
  } catch (error) {
    const { code } = error as { code?: unknown };
    if (code === unknownSession) await connection.close();
    if (code === invalidParams) throw new ToolError(shortMessageOf(error));
    throw new Error(shortMessageOf(error), { cause: error });
  }
  const text = textOf(result);
  if (text.length > maxResultLength)
    throw new ToolError(`the result has ${text.length} characters; ${maxResultLength} are the most`);
  if (result.isError === true) throw new ToolError(text);
  return text;
}

/** The beginning of the message of an error, part of which a server may have written. */
function shortMessageOf(error: unknown): string {
  const message = messageOf(error);
  return message.length > maxMessageLength ? `${message.slice(0, maxMessageLength)} …` : message;
}

/** The parts of a result that a model can read. */
function textOf({ content, structuredContent }: { content?: unknown; structuredContent?: unknown }): string {
  const parts = (Array.isArray(content) ? content : []) as {
    type: string;
    text?: string;
    resource?: { text?: string };
  }[];
  if (parts.length === 0 && structuredContent !== undefined) return JSON.stringify(structuredContent);
  return parts.map(({ type, text, resource }) => text ?? resource?.text ?? `(${type})`).join("\n");
}

/** A connection to a server, opened on first use. */
class Connection {
  readonly #source: McpSource;
  #opened: Promise<{ client: McpClient; close(): Promise<void> }> | undefined;

  constructor(source: McpSource) {
    this.#source = source;
  }

  async client(): Promise<McpClient> {
    if ("listTools" in this.#source) return this.#source;
    this.#opened ??= open(this.#source, () => forget());
    const opened = this.#opened;
    const forget = () => {
      if (this.#opened === opened) this.#opened = undefined;
    };
    try {
      return (await opened).client;
    } catch (error) {
      forget();
      throw error;
    }
  }

  async close(): Promise<void> {
    const opened = this.#opened;
    this.#opened = undefined;
    await (await opened?.catch(() => undefined))?.close();
  }
}

/**
 * The messages do not contain arguments, paths or queries, which may contain keys: faults are
 * recorded.
 *
 * @param onClose called when the connection ends
 */
async function open(source: Exclude<McpSource, McpClient>, onClose: () => void) {
  const server = "command" in source ? source.command : addressOf(source.url).origin;
  const { Client, transport } = await transportTo(source);
  // Structured results are shown as they are. The SDK would check them against schemas of the server,
  // whose patterns can backtrack without end.
  const accept = (value: unknown) => ({
    valid: true as const,
    data: value as never,
    errorMessage: undefined,
  });
  const jsonSchemaValidator = { getValidator: () => accept };
  const client = new Client({ name: "nlac", version: "1" }, { jsonSchemaValidator });
  client.onclose = onClose;
  try {
    await client.connect(transport);
  } catch (error) {
    await client.close().catch(() => undefined);
    throw new NlacError(
      "ERR_ENVIRONMENT",
      `The MCP server ${JSON.stringify(server)} cannot be used: ${shortMessageOf(error)}`,
      { cause: error },
    );
  }
  return { client: client as McpClient, close: () => client.close() };
}

/** Throws ERR_CONFIG, which does not contain the address, unless it is an http(s) address. */
function addressOf(url: string | URL): URL {
  const address = URL.canParse(String(url)) ? new URL(url) : undefined;
  if (address !== undefined && /^https?:$/.test(address.protocol) && address.username === "") return address;
  throw new NlacError(
    "ERR_CONFIG",
    "The url of an MCP server must be an http(s) address without a user name; put keys into headers.",
  );
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
    const options = { requestInit, fetch: fetchFromServer };
    return { Client, transport: new StreamableHTTPClientTransport(addressOf(source.url), options) };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ERR_MODULE_NOT_FOUND") throw error;
    throw new NlacError(
      "ERR_CONFIG",
      "mcpTools needs the package @modelcontextprotocol/sdk: npm install @modelcontextprotocol/sdk",
      { cause: error },
    );
  }
}
