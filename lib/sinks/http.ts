/** Requests of the sinks: JSON over HTTP, with secrets from the environment. */

import type { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { PermanentError } from "./sink.ts";

/**
 * `text`, or the environment variable that it names as "$NAME".
 * @throws NlacError ERR_CONFIG if the variable is not set
 */
export function fromEnvironment(text: string, field: string): string {
  const name = /^\$(\w+)$/.exec(text)?.[1];
  if (name === undefined) return text;
  const value = process.env[name];
  if (value) return value;
  throw new NlacError(
    "ERR_CONFIG",
    `${field} is read from the environment variable ${name}, which is not set.`,
  );
}

/** `url`, to which paths are appended, without a final slash. Throws as `httpAddress`. */
export function baseAddress(url: string, field: string): string {
  return httpAddress(url, field).replace(/\/+$/, "");
}

/** The address `url`, or that of a variable. Throws ERR_CONFIG if it is not an HTTP address. */
export function httpAddress(url: string, field: string): string {
  const address = fromEnvironment(url, field);
  if (!URL.canParse(address) || !/^https?:$/.test(new URL(address).protocol))
    throw new NlacError("ERR_CONFIG", `${field} must be an http:// or https:// address.`);
  return address;
}

export function headersFrom(
  headers: Readonly<Record<string, string>>,
  field: string,
): Record<string, string> {
  return Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [name, fromEnvironment(value, `${field}.${name}`)]),
  );
}

/** The answer's JSON; undefined if there is none. A refused request (4xx) throws PermanentError. */
export async function postJson(
  url: string,
  body: unknown,
  {
    headers,
    signal,
    method = "POST",
  }: { headers: Record<string, string>; signal: AbortSignal; method?: string },
): Promise<unknown> {
  const response = await fetch(url, {
    method,
    headers: { "content-type": "application/json", ...headers },
    ...(method === "GET" ? {} : { body: JSON.stringify(body) }),
    signal,
    redirect: "error", // headers may hold secrets
  });
  const text = await response.text();
  if (!response.ok) {
    const message = `${response.status} ${response.statusText}: ${text.slice(0, 200).replaceAll(/\s+/g, " ")}`;
    const isTransient = response.status >= 500 || response.status === 429 || response.status === 408;
    throw isTransient ? new Error(message) : new PermanentError(message);
  }
  try {
    return text === "" ? undefined : JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** An answer as `schema` has it. Throws a sentence, not the schema's list of faults. */
export function answerOf<T>(schema: z.ZodType<T>, answer: unknown, server: string): T {
  const parsed = schema.safeParse(answer);
  if (parsed.success) return parsed.data;
  throw new Error(`the answer is not that of ${server}: check the address`);
}
