/** Defines a tool: a function that the agent may call, with validated arguments and a timeout. */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { checkKeys, isObject } from "../base/validation.ts";
import type { ToolSchema } from "../contract/environment.ts";
import { type CheckArguments, compileArguments, place } from "./arguments.ts";

/** What a tool, or the person the agent speaks to, knows of the episode. */
export interface ToolContext<State = unknown, Task = unknown> {
  /** The result of `start`; may be changed. */
  state: State;
  task: Task;
  /** Index of the agent's turn in the episode, from 0. */
  turn: number;
  /** Fires at the timeout, and when the episode is stopped or closed. */
  signal: AbortSignal;
  /** Ends the episode with this turn. */
  end(): void;
}

/** Thrown by a tool to refuse a call: the agent sees `message`, and the episode goes on. */
export class ToolError extends Error {}

/** A tool, made by `tool`. */
export interface Tool<State = unknown, Task = unknown> {
  readonly schema: ToolSchema;
  /** Describes what is wrong with arguments that violate the schema. */
  readonly check: CheckArguments;
  /** Timeout of a call in milliseconds. */
  readonly timeout: number;
  /** Called with arguments that passed `check`. Throws ToolError with a message for the agent. */
  call(args: Record<string, unknown>, context: ToolContext<State, Task>): Promise<unknown>;
}

/** The arguments of a handler, from the schema in a tool's definition. */
export type ToolArguments<Parameters> = Parameters extends z.ZodType
  ? z.output<Parameters>
  : Record<string, unknown>;

/** What `tool` makes a tool from. */
export interface ToolDefinition<Parameters, State, Task> {
  /** Letters, digits and _ . / -; at most 128. */
  name: string;
  /** For the agent: what the tool does, and when to use it. */
  description: string;
  /**
   * Schema of the arguments: a zod object, which also types the handler's arguments, or JSON
   * Schema.
   */
  parameters: Parameters;
  /**
   * Timeout of a call in milliseconds; exceeding it is a fault of the environment. Infinity: none.
   * Default 60,000.
   */
  timeout?: number;
  /**
   * Returns the answer to the agent: text, or a value shown as JSON. Throw ToolError to refuse. Any
   * other exception is a fault of the environment and ends the episode.
   */
  handler(args: ToolArguments<Parameters>, context: ToolContext<State, Task>): unknown;
}

/**
 * Defines a function that the agent may call.
 *
 * @throws NlacError ERR_VALUE for an unusable name or timeout, or parameters that are not a schema of
 *   an object
 */
export function tool<Parameters extends z.ZodType | Record<string, unknown>, State = unknown, Task = unknown>(
  definition: ToolDefinition<Parameters, State, Task>,
): Tool<State, Task> {
  checkKeys(definition, "A tool", ["name", "description", "parameters", "timeout", "handler"], "ERR_VALUE");
  const { name, description, parameters: given, timeout = 60_000, handler } = definition;
  if (typeof name !== "string" || !/^[\w./-]{1,128}$/.test(name))
    throw new NlacError(
      "ERR_VALUE",
      `${JSON.stringify(name)} is not a usable tool name: use letters, digits and _ . / -`,
    );
  const refuse = (what: string) => {
    throw new NlacError("ERR_VALUE", `The tool ${JSON.stringify(name)} needs ${what}.`);
  };
  if (typeof description !== "string") refuse("a description, which the agent reads");
  if (typeof handler !== "function") refuse("a handler, a function of the arguments");
  if (!isObject(given)) refuse("parameters: a zod object, or a JSON Schema of an object");
  if ("_def" in given && !isZod(given)) refuse("parameters of zod 4; these are of an older zod");
  if (!(timeout > 0))
    throw new NlacError(
      "ERR_VALUE",
      `The timeout of ${JSON.stringify(name)} must be a positive number, in milliseconds; it is ${timeout}.`,
    );
  const schema = isZod(given) ? given : undefined;
  const full = schema === undefined ? (given as Record<string, unknown>) : jsonSchemaOf(schema, name);
  const { $schema: _, ...parameters } = full;
  return {
    schema: { name, description, parameters },
    check: compileArguments(full, name),
    timeout,
    async call(args, context) {
      const read = schema === undefined ? args : await readArguments(schema, args);
      return handler(read as ToolArguments<Parameters>, context);
    },
  };
}

/** Recognizes any copy of zod 4, such as the caller's own. */
function isZod(parameters: object): parameters is z.ZodType {
  return "_zod" in parameters;
}

function jsonSchemaOf(schema: z.ZodType, name: string): Record<string, unknown> {
  try {
    return z.toJSONSchema(schema, { io: "input" });
  } catch (error) {
    throw new NlacError(
      "ERR_VALUE",
      `The parameters of ${JSON.stringify(name)} cannot be converted to JSON Schema: ${(error as Error).message}`,
      { cause: error },
    );
  }
}

/** Zod handles what JSON Schema cannot express: refinements, transformations, defaults. */
async function readArguments(schema: z.ZodType, args: Record<string, unknown>): Promise<unknown> {
  const read = await schema.safeParseAsync(args);
  if (read.success) return read.data;
  throw new ToolError(read.error.issues.map(({ path, message }) => `${place(path)}: ${message}`).join("; "));
}
