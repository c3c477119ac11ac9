/**
 * Refuses requests from web pages, except from origins that are allowed by name. A page in a
 * browser can send requests to this machine. With DNS rebinding, where the page's host name
 * resolves to this machine's address, it can even read the answers. Browsers send the names that
 * they used in `Host` and `Origin`.
 */

import { isIP } from "node:net";
import type { Context, MiddlewareHandler } from "hono";
import { cors } from "hono/cors";
import { versionHeader } from "./queue.ts";
import { RequestError } from "./request-error.ts";

export interface GuardOptions {
  /** The address that the server listens on. */
  host: string;
  /** Other names by which clients may call the server. */
  allowHosts?: readonly string[];
  /**
   * Origins of web pages that may use the server, for example "https://chat.example"; "*" for all.
   */
  corsOrigins?: readonly string[];
}

/** Refuses requests with a foreign `Host` or `Origin`, with status 403. */
export function guard({ host, allowHosts = [], corsOrigins = [] }: GuardOptions): MiddlewareHandler {
  const names = new Set(["localhost", host, ...allowHosts].map((name) => name.toLowerCase()));
  // An address cannot be rebound, and neither can names below localhost.
  const isOwn = (name: string) => names.has(name) || isIP(name) !== 0 || name.endsWith(".localhost");
  const isLocal = (name: string) =>
    names.has(name) || name.endsWith(".localhost") || name === "::1" || /^127\.[\d.]+$/.test(name);
  return async (c, next) => {
    const called = hostOf(`http://${hostHeader(c)}`);
    if (called === undefined || !isOwn(called))
      throw refused("Host", hostHeader(c), "forbidden_host", "--allow-host");
    const origin = c.req.header("origin");
    const isKnown =
      origin === undefined ||
      corsOrigins.some((known) => known === "*" || known === origin) ||
      isLocal(hostOf(origin) ?? "");
    if (!isKnown) throw refused("Origin", origin, "forbidden_origin", "--cors");
    await next();
  };
}

/**
 * Refuses a request that a page of another site sent without `Origin`, as for an image: for a GET
 * that changes something. A request with `Origin` was checked by `guard`. Throws a RequestError of
 * status 403.
 */
export function refuseCrossSite(c: Context): void {
  const isChecked = c.req.header("origin") !== undefined;
  if (c.req.header("sec-fetch-site") === "cross-site" && !isChecked)
    throw refused("Origin", "", "forbidden_origin", "--cors");
}

/** CORS headers for these origins, and the answers to preflight requests. */
export function corsFor(origins: readonly string[]): MiddlewareHandler {
  return cors({
    origin: origins.includes("*") ? "*" : [...origins],
    allowMethods: ["GET", "POST", "DELETE"],
    exposeHeaders: ["x-episode-id", versionHeader, "retry-after"],
    maxAge: 600,
  });
}

function hostHeader(c: Context): string {
  return c.req.header("host") ?? "";
}

/** The name or address in an URL, without brackets; undefined if there is none. */
function hostOf(url: string): string | undefined {
  try {
    const { hostname } = new URL(url);
    return hostname === "" ? undefined : hostname.toLowerCase().replace(/^\[|\]$|\.$/g, "");
  } catch {
    return undefined;
  }
}

function refused(header: string, value: string, code: string, option: string): RequestError {
  return new RequestError(
    403,
    `The ${header} ${JSON.stringify(value.slice(0, 200))} is not allowed; the server's option ${option} allows it.`,
    code,
  );
}
