import OpenAI from "openai";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { BrokenAnswer, withRetries } from "../../lib/services/retries.ts";

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["Date"] });
});
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

const failure = (status: number, headers: Record<string, string> = {}) =>
  OpenAI.APIError.generate(status, {}, "failed", new Headers(headers));

/** The number of attempts, and the result, of a service that fails so many times with `error`. */
async function attempts(error: unknown, failures: number, maxRetries = 3) {
  vi.spyOn(Math, "random").mockReturnValue(0); // no pause
  let count = 0;
  const result = await withRetries(
    async () => {
      if (count++ < failures) throw error;
      return "reply";
    },
    maxRetries,
    undefined,
  ).catch((thrown: unknown) => thrown);
  return { count, result };
}

describe("a failure that may pass", () => {
  it.each<[string, unknown]>([
    ["a broken connection", new OpenAI.APIConnectionError({ message: "reset" })],
    ["a timeout", new OpenAI.APIConnectionTimeoutError()],
    ["an incomplete reply", new BrokenAnswer("cut off")],
    ["408", failure(408)],
    ["409", failure(409)],
    ["429", failure(429)],
    ["500", failure(500)],
    ["503", failure(503)],
    ["400, if the server says so", failure(400, { "x-should-retry": "true" })],
  ])("%s: is retried", async (_, error) => {
    expect(await attempts(error, 2)).toEqual({ count: 3, result: "reply" });
  });

  it("is thrown after the last retry", async () => {
    const error = failure(503);
    expect(await attempts(error, 9)).toEqual({ count: 4, result: error });
    expect(await attempts(error, 9, 0)).toEqual({ count: 1, result: error });
  });
});

describe("a failure that does not pass", () => {
  it.each<[string, unknown]>([
    ["400", failure(400)],
    ["401", failure(401)],
    ["404", failure(404)],
    ["429 of an exhausted quota", failure(429, { "x-should-retry": "false" })],
    ["a bug", new TypeError("bug")],
    ["a wait of more than five minutes", failure(429, { "retry-after": "301" })],
  ])("%s: is thrown at once", async (_, error) => {
    expect(await attempts(error, 1)).toEqual({ count: 1, result: error });
  });
});

describe("a pause", () => {
  it("is at least what the server asks for, in seconds, milliseconds, or until a date", async () => {
    vi.useRealTimers();
    const asked: Record<string, string>[] = [
      { "retry-after": "0.05" },
      { "retry-after-ms": "50" },
      { "retry-after": new Date(Date.now() + 1050).toUTCString() },
    ];
    for (const headers of asked) {
      const started = performance.now();
      expect((await attempts(failure(503, headers), 1)).count).toBe(2);
      // A date has whole seconds.
      const least = "retry-after-ms" in headers || headers["retry-after"] === "0.05" ? 45 : 0;
      expect(performance.now() - started).toBeGreaterThanOrEqual(least);
    }
  });

  it("until a date is measured by the server's clock: this machine's may be a day behind", async () => {
    vi.useRealTimers();
    const tomorrow = Date.now() + 86_400_000;
    const headers = {
      date: new Date(tomorrow).toUTCString(),
      "retry-after": new Date(tomorrow + 1000).toUTCString(),
    };
    expect((await attempts(failure(503, headers), 1)).count).toBe(2);
  });

  it("ends when the signal fires", async () => {
    vi.useRealTimers();
    const controller = new AbortController();
    const waiting = withRetries(
      () => Promise.reject(failure(503, { "retry-after": "60" })),
      3,
      controller.signal,
    );
    setTimeout(() => controller.abort(), 20);
    await expect(waiting).rejects.toMatchObject({ name: "AbortError" });
  });
});
