/**
 * Adapter for tools of the `ai` package (version 5 or 6), for `defineEnvironment`. Does not load
 * the package.
 */

import { messageOf, NlacError } from "../../base/errors.ts";
import { type Tool, type ToolContext, ToolError, tool } from "../define-tool.ts";

/** The part of that package's tools that the adapter uses. */
export interface AiTool {
  description?: string | undefined;
  /** A zod object, or the result of `jsonSchema()`. */
  inputSchema: unknown;
  // biome-ignore lint/suspicious/noExplicitAny: the package types it by the tool's own input
  execute?: ((input: any, options: any) => unknown) | undefined;
  /** Not supported unless false: nobody is asked during an episode. */
  needsApproval?: unknown;
  /** Not supported: its argument differs between versions. */
  toModelOutput?: unknown;
}

/**
 * Adapts a set of tools as passed to `generateText`. As there, an exception of a tool is reported
 * to the agent, and a tool finds the episode's state in `experimental_context`.
 *
 * @param options.timeout timeout of a call in milliseconds; default 60,000
 * @throws NlacError ERR_VALUE for a tool without `execute`, with `needsApproval` or `toModelOutput`,
 *   or with an unusable name or schema
 */
export async function aiTools<State = unknown, Task = unknown>(
  tools: Record<string, AiTool>,
  options: { timeout?: number } = {},
): Promise<Tool<State, Task>[]> {
  return Promise.all(
    Object.entries(tools).map(async ([name, offered]) => {
      const { description = "", inputSchema, execute, needsApproval, toModelOutput } = offered;
      const refuse = (why: string): never => {
        throw new NlacError("ERR_VALUE", `The tool ${JSON.stringify(name)} ${why}`);
      };
      if (execute === undefined) return refuse("has no execute, so it cannot be called.");
      if (needsApproval !== undefined && needsApproval !== false)
        refuse("has needsApproval, but nobody is asked during an episode. Leave it out to allow every call.");
      if (toModelOutput !== undefined)
        refuse("has toModelOutput, which is not called. Return from execute what the agent should read.");
      const { parameters, validate } = await schemaOf(inputSchema, name);
      return tool({
        name,
        description,
        parameters,
        ...options,
        handler: async (args: unknown, context: ToolContext<State, Task>) => {
          const input = validate === undefined ? args : await validated(validate, args);
          const given = {
            toolCallId: `${name}-${context.turn}`,
            messages: [],
            abortSignal: context.signal,
            experimental_context: context.state,
          };
          try {
            return await lastOf(await execute(input, given));
          } catch (error) {
            if (error instanceof NlacError) throw error;
            throw new ToolError(messageOf(error));
          }
        },
      });
    }),
  );
}

type Validate = (value: unknown) => Promise<Validated> | Validated;
type Validated = { success: true; value: unknown } | { success: false; error: Error };

/**
 * Zod schemas are returned unchanged. For a result of `jsonSchema()`, its JSON Schema and its
 * validator.
 */
async function schemaOf(
  given: unknown,
  name: string,
): Promise<{ parameters: Record<string, unknown>; validate?: Validate }> {
  const schema: unknown = typeof given === "function" ? given() : given;
  if (typeof schema === "object" && schema !== null) {
    if ("_zod" in schema) return { parameters: schema as Record<string, unknown> };
    if ("jsonSchema" in schema) {
      const { jsonSchema, validate } = schema as { jsonSchema: unknown; validate?: Validate };
      return { parameters: (await jsonSchema) as Record<string, unknown>, ...(validate && { validate }) };
    }
  }
  throw new NlacError(
    "ERR_VALUE",
    `The inputSchema of ${JSON.stringify(name)} must be a zod object or what jsonSchema() makes.`,
  );
}

async function validated(validate: Validate, args: unknown): Promise<unknown> {
  const result = await validate(args);
  if (result.success) return result.value;
  throw new ToolError(result.error.message);
}

/** Tools may return an async iterable of partial results; the last one is complete. */
async function lastOf(result: unknown): Promise<unknown> {
  if (typeof result !== "object" || result === null || !(Symbol.asyncIterator in result)) return result;
  let last: unknown;
  for await (const part of result as AsyncIterable<unknown>) last = part;
  return last;
}
