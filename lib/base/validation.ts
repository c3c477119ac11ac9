/** Checks of arguments and configurations. `where` names the argument in messages. */

import { z } from "zod";
import { nearestName } from "./did-you-mean.ts";
import { NlacError, NotHere } from "./errors.ts";

/** Throws ERR_VALUE unless `value` is a number in [least, most]. */
export function checkNumber(value: unknown, where: string, least: number, most = Number.MAX_VALUE): number {
  if (typeof value === "number" && value >= least && value <= most) return value;
  throw new NlacError(
    "ERR_VALUE",
    `${where} must be a ${rangeOfNumber(least, most)}; it is ${shown(value)}.`,
  );
}

function rangeOfNumber(least: number, most: number): string {
  if (most !== Number.MAX_VALUE) return `number from ${least} to ${most}`;
  if (least === -Number.MAX_VALUE) return "finite number";
  return least === Number.MIN_VALUE ? "finite number above 0" : `finite number of at least ${least}`;
}

/** Throws ERR_VALUE unless `value` is an integer in [least, most]. */
export function checkInteger(
  value: unknown,
  where: string,
  least: number,
  most = Number.MAX_SAFE_INTEGER,
): number {
  if (Number.isInteger(value) && (value as number) >= least && (value as number) <= most) {
    return value as number;
  }
  const range = most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `from ${least} to ${most}`;
  throw new NlacError("ERR_VALUE", `${where} must be an integer ${range}; it is ${shown(value)}.`);
}

/** Throws ERR_VALUE unless `value` is true or false. */
export function checkBoolean(value: unknown, where: string): boolean {
  if (typeof value === "boolean") return value;
  throw new NlacError("ERR_VALUE", `${where} must be true or false; it is ${shown(value)}.`);
}

/** A 64-bit unsigned seed, from a non-negative safe integer or a bigint. */
export function checkSeed(value: unknown, where: string): bigint {
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return BigInt(value);
  if (typeof value === "bigint" && value >= 0n && value < 1n << 64n) return value;
  throw new NlacError(
    "ERR_VALUE",
    `${where} must be an integer from 0 to 2^53 - 1, or a bigint below 2^64; it is ${shown(value)}.`,
  );
}

/** Throws ERR_VALUE unless `value` is one of `choices`. */
export function checkChoice<T extends string>(value: unknown, where: string, choices: readonly T[]): T {
  if (choices.includes(value as T)) return value as T;
  const names = choices.map((choice) => `"${choice}"`).join(" or ");
  throw new NlacError("ERR_VALUE", `${where} must be ${names}; it is ${shown(value)}.`);
}

/**
 * Throws `code` unless `value` is an object whose keys are all in `known`, to catch misspelt
 * options.
 */
export function checkKeys(
  value: object,
  where: string,
  known: readonly string[],
  code: "ERR_CONFIG" | "ERR_VALUE",
): void {
  checkObject(value, where, code);
  for (const key of Object.keys(value)) {
    if (known.includes(key)) continue;
    throw new NlacError(code, `${where} has no ${shown(key)}; it takes ${known.join(", ")}.`);
  }
}

/** Throws `code` unless `value` is an object that is no array. */
export function checkObject(
  value: unknown,
  where: string,
  code: "ERR_CONFIG" | "ERR_VALUE" = "ERR_VALUE",
): void {
  if (!isObject(value)) throw new NlacError(code, `${where} must be an object; it is ${shown(value)}.`);
}

/** Throws ERR_VALUE unless `value` is an array or typed array. Its elements are not checked. */
export function checkNumbers(value: unknown, where: string): asserts value is ArrayLike<number> {
  if (Array.isArray(value) || (ArrayBuffer.isView(value) && "length" in value)) return;
  throw new NlacError("ERR_VALUE", `${where} must be an array of numbers; it is ${shown(value)}.`);
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A value, formatted for a message. */
export function shown(value: unknown): string {
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "string") return JSON.stringify(value.length > 60 ? `${value.slice(0, 60)}…` : value);
  if (value === null || typeof value !== "object") return String(value);
  return `a value of type ${Array.isArray(value) ? "array" : (value.constructor?.name ?? "object")}`;
}

/** Calls `open`. Prefixes errors with the option that it reads, as in "tauBench.user". */
export function inOption<T>(where: string, open: () => T): T {
  try {
    return open();
  } catch (error) {
    if (!(error instanceof NlacError)) throw error;
    const [message, options] = [`${where}: ${error.message}`, { cause: error }];
    throw error instanceof NotHere
      ? new NotHere(message, options)
      : new NlacError(error.code, message, options);
  }
}

/** A validated configuration with defaults. Throws ERR_CONFIG that names every bad field. */
export function checkConfig<Schema extends z.ZodType>(schema: Schema, input: unknown): z.output<Schema> {
  const parsed = schema.safeParse(input ?? {}, { error: clearMessage });
  if (!parsed.success) throw new NlacError("ERR_CONFIG", z.prettifyError(parsed.error));
  return parsed.data;
}

/**
 * For zod's option `error`: names the field that a misspelt key was meant to be, with its path, and
 * all kinds of values that a field can have. Zod's own messages are kept for all other errors.
 */
export function clearMessage(issue: z.core.$ZodRawIssue): string | undefined {
  if (issue.code === "invalid_union") return eachOf(issue.errors as z.core.$ZodIssue[][]);
  const { code, keys, path = [], inst } = issue;
  if (code !== "unrecognized_keys" || !(inst instanceof z.ZodObject)) return undefined;
  const named = (keys as string[]).map((key) => {
    const field = nearestName(key, Object.keys(inst.shape));
    return `"${key}"${field === undefined ? "" : ` (did you mean "${z.core.toDotPath([...path, field])}"?)`}`;
  });
  return `Unrecognized key${named.length > 1 ? "s" : ""}: ${named.join(", ")}`;
}

/** The first problem of a value that does not fit a schema: "files: name: Invalid input". */
export function firstIssue({ issues }: z.ZodError): string {
  const { path, message } = issues[0]!;
  return [...path, message].join(": ");
}

/** What each kind of a union expects; undefined if zod does not say it of any. */
function eachOf(kinds: readonly (readonly z.core.$ZodIssue[])[]): string | undefined {
  const reasons = kinds.flatMap(([first]) => {
    const [, reason] = /^(?:Invalid \w+: )?(expected .+)$/i.exec(first?.message ?? "") ?? [];
    if (reason === undefined) return [];
    return [first!.path.length === 0 ? reason : `${z.core.toDotPath(first!.path)}: ${reason}`];
  });
  return reasons.length === 0 ? undefined : `Invalid input: ${[...new Set(reasons)].join(", or ")}`;
}
