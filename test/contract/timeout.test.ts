import { getEventListeners } from "node:events";
import { expect, test, vi } from "vitest";
import { withTimeout } from "../../lib/contract/timeout.ts";

const never = () => new Promise<never>(() => {});

test("gives the answer or its error, and leaves no listener behind", async () => {
  const { signal } = new AbortController();
  const patience = { stepTimeout: 60_000, signal };
  expect(await withTimeout(async () => 7, patience)).toBe(7);
  await expect(withTimeout(async () => Promise.reject(new Error("closed")), patience)).rejects.toThrow(
    "closed",
  );
  expect(getEventListeners(signal, "abort")).toEqual([]);
});

test("gives up at the timeout, and when the signal fires", async () => {
  await expect(withTimeout(never, { stepTimeout: 5 })).rejects.toMatchObject({
    code: "ERR_ENVIRONMENT",
    message: expect.stringContaining("5 ms"),
  });
  const controller = new AbortController();
  const waiting = withTimeout(never, { signal: controller.signal });
  controller.abort();
  await expect(waiting).rejects.toMatchObject({ code: "ERR_ABORTED" });
});

test("has no timeout beyond what a timer can wait", async () => {
  const slow = () => new Promise((resolve) => setTimeout(() => resolve(7), 20));
  expect(await withTimeout(slow, { stepTimeout: Number.POSITIVE_INFINITY })).toBe(7);
  expect(await withTimeout(slow, { stepTimeout: 2 ** 31 })).toBe(7);
});

test("asks nothing if the signal has fired already", async () => {
  const asked = vi.fn(never);
  await expect(withTimeout(asked, { signal: AbortSignal.abort() })).rejects.toMatchObject({
    code: "ERR_ABORTED",
  });
  expect(asked).not.toHaveBeenCalled();
});
