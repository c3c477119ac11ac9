import type * as Fs from "node:fs";
import { existsSync, readdirSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { beforeEach, expect, test, vi } from "vitest";
import { lockNow } from "../../lib/files/lock.ts";
import { temporaryDirectory } from "../support/files-and-servers.ts";
import { lockOf } from "../support/locks.ts";

/** Whether the private files of a lock cannot be removed. */
const disk = vi.hoisted(() => ({ refuses: false }));

vi.mock("node:fs", async (original) => {
  const fs = await original<typeof Fs>();
  return {
    ...fs,
    rmSync(path: string, options?: Fs.RmOptions) {
      if (disk.refuses && basename(path).startsWith("a.lock."))
        throw Object.assign(new Error("EIO"), { code: "EIO", errno: -5, syscall: "unlink", path });
      fs.rmSync(path, options);
    },
  };
});

beforeEach(() => {
  disk.refuses = false;
});

test.each(["no process", "an ended process"])(
  "a lock of %s is taken and released although its private files cannot be removed",
  (holder) => {
    const path = join(temporaryDirectory(), "a.lock");
    if (holder === "an ended process") writeFileSync(path, lockOf(process.ppid, { ended: true }));
    disk.refuses = true;
    const lock = lockNow(path, "a", "ERR_RUN");
    expect(readdirSync(dirname(path)).length).toBeGreaterThan(1); // they stay
    lock.release();
    expect(existsSync(path)).toBe(false);
    lockNow(path, "a", "ERR_RUN").release();
  },
);
