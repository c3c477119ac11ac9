import { Hono } from "hono";
import { describe, expect, it } from "vitest";
import { type GuardOptions, guard, refuseCrossSite } from "../../lib/serve/guard.ts";
import type { RequestError } from "../../lib/serve/request-error.ts";

/**
 * What a server with these options answers to a request with these headers: 200, or the error's
 * code.
 */
async function answer(
  headers: Record<string, string>,
  options: Partial<GuardOptions> = {},
): Promise<unknown> {
  const app = new Hono();
  app.use(guard({ host: "127.0.0.1", ...options }));
  app.get("/", (c) => {
    refuseCrossSite(c);
    return c.json(200);
  });
  app.onError((error, c) => c.json((error as RequestError).code));
  return (await app.request("/", { headers: { host: "127.0.0.1:8000", ...headers } })).json();
}

describe("a request's Host", () => {
  it.each([
    "localhost",
    "localhost:8000",
    "LOCALHOST.",
    "my.localhost:1",
    "127.0.0.1",
    "[::1]:8000",
    "10.0.0.7",
  ])("may be %s", async (host) => expect(await answer({ host })).toBe(200));

  it.each(["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "xlocalhost", "", "a b"])(
    "may not be %j: another name may be rebound to this machine",
    async (host) => expect(await answer({ host })).toBe("forbidden_host"),
  );

  it("may be a name that the server's user allows", async () => {
    expect(await answer({ host: "box.lan:8000" })).toBe("forbidden_host");
    expect(await answer({ host: "box.lan:8000" }, { allowHosts: ["Box.lan"] })).toBe(200);
  });
});

describe("a page's Origin", () => {
  it.each(["http://localhost:3000", "https://app.localhost", "http://127.0.0.1:5173", "http://[::1]"])(
    "may be %s",
    async (origin) => expect(await answer({ origin })).toBe(200),
  );

  it.each(["https://evil.example", "null", "http://10.0.0.7", "https://127.0.0.1.evil.example"])(
    "may not be %s",
    async (origin) => expect(await answer({ origin })).toBe("forbidden_origin"),
  );

  it("may be one that is allowed, exactly, or any with *", async () => {
    const corsOrigins = ["https://chat.example"];
    expect(await answer({ origin: "https://chat.example" }, { corsOrigins })).toBe(200);
    expect(await answer({ origin: "http://chat.example" }, { corsOrigins })).toBe("forbidden_origin");
    expect(await answer({ origin: "https://any.example" }, { corsOrigins: ["*"] })).toBe(200);
  });

  it("may be missing, except for a request that another site's page made", async () => {
    expect(await answer({ "sec-fetch-site": "same-origin" })).toBe(200);
    expect(await answer({ "sec-fetch-site": "cross-site" })).toBe("forbidden_origin");
  });
});
