/** API keys, and what each may do. */

import { createHash, timingSafeEqual } from "node:crypto";
import { RequestError } from "./request-error.ts";

/**
 * "ask": models and completions. "reward": rewards, corrections and tasks of episodes. "train": the
 * state of the training, versions, metrics, and the deletion of episodes.
 */
export type Scope = "ask" | "reward" | "train";

export const scopes = ["ask", "reward", "train"] as const satisfies readonly Scope[];

/** The API keys of a server: the one that may do everything, and others with their scopes. */
export interface Keys {
  token?: string;
  tokens?: Readonly<Record<string, readonly Scope[]>>;
}

/** Whether requests need a key. */
export function requiresKey({ token, tokens = {} }: Keys): boolean {
  return token !== undefined || Object.keys(tokens).length > 0;
}

/** The scope that a request needs. */
export function scopeOf(path: string, method: string): Scope {
  if (/^\/v1\/(episodes|tasks)\//.test(path)) return method === "DELETE" ? "train" : "reward";
  return /^\/v1\/(training|versions|metrics)(\/|$)/.test(path) ? "train" : "ask";
}

/**
 * Throws a RequestError of status 401 unless the key is known, or 403 if it lacks the scope.
 * Without any keys, everything is allowed.
 *
 * @param authorization the header of the request
 */
export function requireScope(authorization: string | undefined, scope: Scope, keys: Keys): void {
  if (!requiresKey(keys)) return;
  const { token, tokens = {} } = keys;
  const known: [string, readonly Scope[]][] = Object.entries(tokens);
  if (token !== undefined) known.push([token, scopes]);
  // Every key is compared, so that the time does not tell which one matched.
  const matching = known.filter(([key]) => isSameSecret(authorization, `Bearer ${key}`));
  if (matching.length === 0)
    throw new RequestError(401, "The API key is missing or wrong.", "invalid_api_key");
  if (matching.some(([, allowed]) => allowed.includes(scope))) return;
  throw new RequestError(403, `This API key lacks the scope ${scope}.`, "missing_scope");
}

/** Compares in constant time. */
export function isSameSecret(given: string | undefined, wanted: string): boolean {
  const hash = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(hash(given ?? ""), hash(wanted));
}
