/**
 * Validates a call's arguments against the tool's JSON Schema. Problems are worded for the agent
 * and name the place. Schemas may come from outside, for example from an MCP server: see
 * docs/decisions/0008.
 */

import { Ajv, type ErrorObject, type Options, type ValidateFunction } from "ajv";
import { Ajv2020 } from "ajv/dist/2020.js";
import { NlacError } from "../base/errors.ts";
import { getOrAdd } from "../base/get-or-add.ts";
import { isOverTimeLimit, withTimeLimit } from "../base/time-limit.ts";

/** Returns the problem with a call's arguments, or undefined. Does not change them. */
export type CheckArguments = (args: Record<string, unknown>) => string | undefined;

/** Deepest nesting of a schema. */
const maxDepth = 64;
/** Most problems reported to the agent at once. */
const maxTold = 5;
/** Timeout of a check in milliseconds: patterns can backtrack without end. */
const checking = 1000;
/**
 * Timeout for compiling a schema in milliseconds. On a busy machine the first one needs more than a
 * second.
 */
const compiling = 10_000;

/**
 * Compiles a schema once. Formats are annotations, as in the standard, and unknown keywords are
 * ignored. Nothing is coerced, and no defaults are filled in.
 *
 * @param schema JSON Schema of an object: draft 2020-12, or 7 and older if `$schema` says so
 * @throws NlacError ERR_VALUE if it is not a schema of an object or refers to another document
 */
export function compileArguments(schema: Record<string, unknown>, tool: string): CheckArguments {
  const refused = (reason: string, cause?: unknown) =>
    new NlacError(
      "ERR_VALUE",
      `The parameters of ${JSON.stringify(tool)} are not a usable JSON Schema: ${reason}.`,
      {
        cause,
      },
    );
  if (depthOf(schema) > maxDepth) throw refused(`they are nested deeper than ${maxDepth} levels`);
  if (schema.type !== "object") throw refused('their type must be "object"');
  // Ajv's own keyword $async is no part of JSON Schema. With it, a check would return a promise,
  // which passes for "no problem" and rejects without a handler.
  const { $schema: dialect, $async: _, ...rest } = schema;
  const older = typeof dialect === "string" && /draft-0[4-7]/.test(dialect);
  let validate: ValidateFunction;
  try {
    const Dialect = older ? Ajv : Ajv2020;
    const checker = checkerOf(Dialect);
    validate = withTimeLimit(compiling, () => {
      checker.validateSchema(rest, true);
      return new Dialect({ ...options, validateSchema: false }).compile(rest);
    });
  } catch (error) {
    throw refused((error as Error).message, error);
  }
  return (args) => {
    try {
      return withTimeLimit(checking, () => validate(args)) ? undefined : describe(validate.errors!);
    } catch (error) {
      if (isOverTimeLimit(error)) return "arguments take too long to be checked";
      if (error instanceof RangeError) return "arguments are nested too deeply";
      // Comparing values throws for an argument called "valueOf".
      return "arguments have names that cannot be used here";
    }
  };
}

const options: Options = {
  strict: false,
  allErrors: true,
  ownProperties: true,
  validateFormats: false,
  logger: false,
};

const checkers = new Map<typeof Ajv | typeof Ajv2020, Ajv>();

/**
 * Checks schemas against the schema of their dialect, which takes milliseconds to compile, so it is
 * done once. The schemas are compiled elsewhere: what one of them defines must not be known to another.
 */
function checkerOf(Dialect: typeof Ajv | typeof Ajv2020): Ajv {
  return getOrAdd(checkers, Dialect, () => {
    const checker = new Dialect(options);
    checker.validateSchema({});
    return checker;
  });
}

function describe(errors: readonly ErrorObject[]): string {
  const told = [...new Set(errors.map(problem))];
  const rest = told.length - maxTold;
  return told.slice(0, maxTold).join("; ") + (rest > 0 ? `; and ${rest} more` : "");
}

/** `arguments.items[0] must be string` */
function problem({ instancePath, keyword, params, message = "" }: ErrorObject): string {
  const where = place(instancePath.split("/").slice(1).map(unescaped));
  if (keyword === "additionalProperties" || keyword === "unevaluatedProperties") {
    const name = (params.additionalProperty ?? params.unevaluatedProperty) as string;
    return `${where} must not have the property ${JSON.stringify(name)}`;
  }
  if (keyword === "enum") {
    const allowed = (params.allowedValues as unknown[]).map((value) => JSON.stringify(value));
    return `${where} must be one of ${allowed.join(", ")}`;
  }
  if (keyword === "const") return `${where} must be ${JSON.stringify(params.allowedValue)}`;
  return `${where} ${message}`;
}

/** Unescapes a step of a JSON pointer. */
function unescaped(key: string): string {
  return key.replaceAll("~1", "/").replaceAll("~0", "~");
}

/** The place of a problem, in JavaScript notation. */
export function place(path: readonly PropertyKey[]): string {
  return `arguments${path.map((key) => step(String(key))).join("")}`;
}

function step(key: string): string {
  if (/^\d+$/.test(key)) return `[${key}]`;
  return /^[A-Za-z_$][\w$]*$/.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`;
}

function depthOf(value: unknown): number {
  let level: unknown[] = [value];
  for (let depth = 0; ; depth++) {
    level = level.flatMap((item) => (typeof item === "object" && item !== null ? Object.values(item) : []));
    if (level.length === 0 || depth > maxDepth) return depth;
  }
}
