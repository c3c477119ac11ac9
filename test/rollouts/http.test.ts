import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, onTestFinished, test, vi } from "vitest";
import { callServer, HttpFault } from "../../lib/rollouts/http.ts";
import { type JsonAnswer, type JsonServer, jsonServer } from "../support/json-server.ts";

let server: JsonServer | undefined;
afterEach(async () => {
  vi.unstubAllEnvs();
  await server?.close();
  server = undefined;
});
const answering = async (answer: JsonAnswer) => {
  server = await jsonServer(() => answer);
  return server;
};

test("a body makes a POST; the key of the environment is sent", async () => {
  const { url, requests } = await answering({ json: { ok: true } });
  expect(await callServer(url, "/read?all=1")).toEqual({ ok: true });
  vi.stubEnv("NLAC_ROLLOUTS_KEY", "secret");
  await callServer(url, "/write", { text: "ä" });
  expect(requests.map(({ method, path, body }) => [method, path, body])).toEqual([
    ["GET", "/read?all=1", undefined],
    ["POST", "/write", { text: "ä" }],
  ]);
  expect(requests.map(({ headers }) => headers.authorization)).toEqual([undefined, "Bearer secret"]);
});

test.each([
  [404, true, false],
  [405, true, false],
  [501, true, true],
  [400, false, false],
  [409, false, true],
  [429, false, true],
  [503, false, true],
  [302, false, false],
])("status %i: missing %s, transient %s", async (status, isMissing, isTransient) => {
  const { url } = await answering({ status, json: { error: "x".repeat(400) } });
  const fault = await callServer(url, "/x").catch((error: unknown) => error);
  expect(fault).toBeInstanceOf(HttpFault);
  expect(fault).toMatchObject({ status, isMissing, isTransient });
  const { message } = fault as Error;
  expect(message).toMatch(`GET ${url}/x: ${status} {"error":"xxx`);
  expect(message.length).toBeLessThan(400);
});

test("no answer is transient and has no status", async () => {
  const { url, close } = await answering("never");
  await expect(callServer(url, "/x", {}, undefined, 50)).rejects.toMatchObject({
    ...{ status: undefined, isTransient: true, message: `POST ${url}/x: no answer in 0.05 seconds` },
  });
  await close();
  server = undefined;
  await expect(callServer(url, "/x")).rejects.toMatchObject({ status: undefined, isTransient: true });
});

test("a signal ends a request with its own error", async () => {
  const { url } = await answering("never");
  const failed = callServer(url, "/x", {}, AbortSignal.timeout(50));
  await expect(failed).rejects.toMatchObject({ name: "AbortError" });
});

test("a request is sent again if the server closes a kept connection just then", async () => {
  const seen: string[] = [];
  const used = new WeakSet<object>();
  const closing = createServer((request, response) => {
    seen.push(request.url!);
    // As if the server had closed it while the request was on its way.
    if (used.has(request.socket)) request.socket.resetAndDestroy();
    else response.end("{}");
    used.add(request.socket);
  });
  await new Promise<void>((resolve) => closing.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => {
    closing.closeAllConnections();
    closing.close();
  });
  const url = `http://127.0.0.1:${(closing.address() as AddressInfo).port}`;
  expect(await callServer(url, "/first", {})).toEqual({});
  expect(await callServer(url, "/pause", {})).toEqual({});
  expect(seen).toEqual(["/first", "/pause", "/pause"]);
});
