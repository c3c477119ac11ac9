/** A tool of one's own: a function that the agent may call, with what is checked and bounded about its calls. */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { checkKeys } from "../base/validation.ts";
import type { ToolSchema } from "../contract/environment.ts";
import { type CheckArguments, compileArguments, place } from "./arguments.ts";

/** What a tool, or the person who is spoken to, knows of the episode. */
export interface ToolContext<State = unknown, Task = unknown> {
  /** What `start` gave, to be read and changed. */
  state: State;
  task: Task;
  /** Fires when the time is up, and when the episode is stopped or closed. */
  signal: AbortSignal;
  /** Ends the episode with this turn. */
  end(): void;
}

/** Thrown by a tool to refuse: the agent is told `message`, and the episode goes on. */
export class ToolError extends Error {}

/** A tool, made by `tool`. */
export interface Tool<State = unknown, Task = unknown> {
  readonly schema: ToolSchema;
  /** What is wrong with arguments that break the schema. */
  readonly check: CheckArguments;
  /** Milliseconds that a call may take. */
  readonly timeout: number;
  /** Of arguments that passed `check`. Throws ToolError for what the agent is to be told. */
  call(args: Record<string, unknown>, context: ToolContext<State, Task>): Promise<unknown>;
}

type ArgumentsOf<Parameters> = Parameters extends z.ZodType ? z.output<Parameters> : Record<string, unknown>;

export interface ToolDefinition<Parameters, State, Task> {
  /** Letters, digits and _ . / -; at most 128. */
  name: string;
  /** For the agent: what the tool does, and when to use it. */
  description: string;
  /** Of the arguments: a zod object, which types the handler's, or JSON Schema. */
  parameters: Parameters;
  /** Milliseconds that a call may take; one that takes longer is a fault of the environment. Default 60,000. */
  timeout?: number;
  /**
   * What the agent is answered: text, or a value that is shown as JSON. Throws ToolError to refuse; whatever else it throws
   * is a fault of the environment, which ends the episode.
   */
  handler(args: ArgumentsOf<Parameters>, context: ToolContext<State, Task>): unknown;
}

/**
 * A function that the agent may call.
 *
 * @throws NlacError ERR_VALUE for a name that cannot be used, or parameters that are no schema of an object
 */
export function tool<Parameters extends z.ZodType | Record<string, unknown>, State = unknown, Task = unknown>(
  definition: ToolDefinition<Parameters, State, Task>,
): Tool<State, Task> {
  checkKeys(definition, "A tool", ["name", "description", "parameters", "timeout", "handler"], "ERR_VALUE");
  const { name, description, parameters: given, timeout = 60_000, handler } = definition;
  if (!/^[\w./-]{1,128}$/.test(name))
    throw new NlacError(
      "ERR_VALUE",
      `A tool cannot be called ${JSON.stringify(name)}: use letters, digits and _ . / -`,
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
      return handler(read as ArgumentsOf<Parameters>, context);
    },
  };
}

/** Of any copy of zod 4, the caller's own perhaps. */
function isZod(parameters: object): parameters is z.ZodType {
  return "_zod" in parameters;
}

function jsonSchemaOf(schema: z.ZodType, name: string): Record<string, unknown> {
  try {
    return z.toJSONSchema(schema, { io: "input" });
  } catch (error) {
    throw new NlacError(
      "ERR_VALUE",
      `The parameters of ${JSON.stringify(name)} cannot be written as JSON Schema: ${(error as Error).message}`,
      { cause: error },
    );
  }
}

/** What JSON Schema cannot say (a refinement, a transformation, a default) is zod's to do. */
async function readArguments(schema: z.ZodType, args: Record<string, unknown>): Promise<unknown> {
  const read = await schema.safeParseAsync(args);
  if (read.success) return read.data;
  throw new ToolError(read.error.issues.map(({ path, message }) => `${place(path)}: ${message}`).join("; "));
}
