import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, utimesSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { withLock } from "../../lib/native/lock.ts";
import { temporaryDirectory, write } from "../support/files-and-servers.ts";

describe("withLock", () => {
  it("lets one holder in at a time, and says once that it waits", async () => {
    const path = join(temporaryDirectory(), "a.lock");
    let inside = 0;
    let most = 0;
    const waits: string[] = [];
    const hold = () =>
      withLock(
        path,
        async () => {
          most = Math.max(most, ++inside);
          await sleep(30);
          inside--;
        },
        { pollMs: 5, onWait: (holder) => waits.push(holder) },
      );
    await Promise.all([hold(), hold(), hold()]);
    expect(most).toBe(1);
    expect(waits).toEqual(Array(2).fill(`${process.pid} ${hostname()}`));
    expect(existsSync(path)).toBe(false);
  });

  it("is released when the body throws", async () => {
    const path = join(temporaryDirectory(), "a.lock");
    await expect(withLock(path, () => Promise.reject(new Error("no")))).rejects.toThrow("no");
    expect(existsSync(path)).toBe(false);
  });

  it("takes over from a dead process at once", async () => {
    const path = join(temporaryDirectory(), "a.lock");
    const dead = spawnSync(process.execPath, ["-e", ""]).pid;
    write(path, `${dead} ${hostname()}\n`);
    const holder = await withLock(path, async () => readFileSync(path, "utf8"), { pollMs: 5 });
    expect(holder).toBe(`${process.pid} ${hostname()}\n`);
  });

  it("takes over from another host only after its lock is stale", async () => {
    const path = join(temporaryDirectory(), "a.lock");
    write(path, "1 elsewhere\n");
    let entered = false;
    const enter = async () => {
      entered = true;
    };
    const waiting = withLock(path, enter, { pollMs: 5, staleMs: 60_000 });
    await sleep(60);
    expect(entered).toBe(false);
    const old = new Date(Date.now() - 61_000);
    utimesSync(path, old, old);
    await waiting;
    expect(entered).toBe(true);
  });
});
