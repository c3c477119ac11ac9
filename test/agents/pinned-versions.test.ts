import { expect, test } from "vitest";
import { PinnedVersions } from "../../lib/agents/pinned-versions.ts";
import { NlacError } from "../../lib/base/errors.ts";
import type { Learner } from "../../lib/learner/learner.ts";
import { loggedFailure, type RequestError } from "../../lib/serve/request-error.ts";

test("holds no more versions than allowed, also while requests overlap", async () => {
  let loaded = 0;
  const most: number[] = [];
  const load = async () => {
    most.push(++loaded);
    return { dispose: async () => void loaded-- } as unknown as Learner;
  };
  const pinned = new PinnedVersions(load, () => true, 2);
  const [a, again, b] = await Promise.all([pinned.admit("1.1"), pinned.admit("1.1"), pinned.admit("1.2")]);
  await expect(pinned.admit("1.3")).rejects.toMatchObject({ status: 503, code: "version_busy" });
  a.leave();
  a.leave();
  await expect(pinned.admit("1.3")).rejects.toMatchObject({ status: 503 }); // it has another request
  again.leave();
  const c = await pinned.admit("1.3");
  expect(c).toMatchObject({ version: "1.3", pinned: true });
  for (const admission of [b, c]) admission.leave();
  await pinned.dispose();
  expect(Math.max(...most)).toBe(2);
  expect(loaded).toBe(0);
});

/** Loads no version, because of an error. */
const failing = (error: Error, isKept: () => boolean) =>
  new PinnedVersions(
    () => {
      throw error;
    },
    isKept,
    1,
  );

test("a version that was removed meanwhile is not found", async () => {
  const removed = new NlacError("ERR_CHECKPOINT", "There is no version 1.1.");
  const pinned = failing(removed, () => false);
  for (let time = 0; time < 2; time++)
    await expect(pinned.admit("1.1")).rejects.toMatchObject({ status: 404, code: "model_not_found" });
});

test.each([
  ["ERR_OUT_OF_MEMORY", 503],
  ["ERR_IO", 500],
  ["ERR_CHECKPOINT", 500],
  ["ERR_CONFIG", 500],
] as const)(
  "a kept version that cannot be loaded because of %s is a failure of the server",
  async (code, status) => {
    const reason = "/srv/runs/agent/checkpoint-000003/state.json is damaged.";
    for (const isKept of [
      () => true,
      () => {
        throw new NlacError("ERR_IO", "The versions cannot be read.");
      },
    ]) {
      const pinned = failing(new NlacError(code, reason), isKept);
      const failure = await pinned.admit("1.1").catch((error: unknown) => error);
      expect(failure).toMatchObject({ status, code, type: "server_error" });
      const { message } = failure as RequestError;
      expect(message).toContain("The version 1.1 cannot be loaded.");
      // Those of the core at status 503 name no files.
      if (status === 500) expect(message).not.toContain("/srv");
      expect(loggedFailure(failure)).toContain(reason);
    }
  },
);
