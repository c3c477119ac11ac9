import { spawn } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { describe, expect, it, vi } from "vitest";
import { lockNow, withLock } from "../../lib/files/lock.ts";
import { temporaryDirectory } from "../support/files-and-servers.ts";
import { lockOf } from "../support/locks.ts";

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
    expect(waits).toEqual(Array(2).fill(`process ${process.pid}`));
    expect(existsSync(path)).toBe(false);
  });

  it("is released when the body throws", async () => {
    const path = join(temporaryDirectory(), "a.lock");
    await expect(withLock(path, () => Promise.reject(new Error("no")))).rejects.toThrow("no");
    expect(existsSync(path)).toBe(false);
  });

  it("takes over from an ended process at once, also if another process has its id", async () => {
    const path = join(temporaryDirectory(), "a.lock");
    writeFileSync(path, lockOf(process.ppid, { ended: true }));
    const holder = await withLock(path, async () => readFileSync(path, "utf8"), { pollMs: 5 });
    expect(JSON.parse(holder)).toMatchObject({ pid: process.pid });
    expect(readdirSync(join(path, ".."))).toEqual([]);
  });

  it("takes over from another host only after it has seen it untouched for long", async () => {
    const path = join(temporaryDirectory(), "a.lock");
    writeFileSync(path, lockOf(1, { host: "elsewhere", boot: "another" }));
    let entered = false;
    const enter = async () => {
      entered = true;
    };
    const waiting = withLock(path, enter, { pollMs: 5, staleMs: 500 });
    await sleep(100);
    expect(entered).toBe(false);
    await waiting;
    expect(entered).toBe(true);
  });
});

describe("lockNow", () => {
  const refused = (path: string) =>
    expect(() => lockNow(path, "runs/mine", "ERR_RUN")).toThrow(
      expect.objectContaining({ code: "ERR_RUN", message: expect.stringContaining(`delete ${path}`) }),
    );

  it("refuses a second user, of this process or another, until the first releases it", () => {
    const path = join(temporaryDirectory(), "lock");
    const lock = lockNow(path, "runs/mine", "ERR_RUN");
    refused(path);
    lock.release();
    lock.release();
    lockNow(path, "runs/mine", "ERR_RUN").release();
    writeFileSync(path, lockOf(process.ppid));
    refused(path);
    // A machine that has booted since.
    writeFileSync(path, lockOf(1, { boot: "an earlier one" }));
    lockNow(path, "runs/mine", "ERR_RUN").release();
    expect(existsSync(path)).toBe(false);
  });

  it("refuses where the holder is on another host, or cannot be read", () => {
    const path = join(temporaryDirectory(), "lock");
    for (const content of [lockOf(1, { host: "elsewhere", boot: "another" }), "", "123", "{}"]) {
      writeFileSync(path, content);
      refused(path);
      expect(readFileSync(path, "utf8")).toBe(content);
    }
    const directory = join(path, "..", "directory");
    mkdirSync(directory);
    refused(directory);
    const dead = join(path, "..", "dead");
    symlinkSync(join(path, "..", "nowhere"), dead);
    refused(dead);
  });

  it("names the directory in which it cannot be created", () => {
    const directory = join(temporaryDirectory(), "none");
    expect(() => lockNow(join(directory, "lock"), "A run", "ERR_RUN")).toThrow(
      expect.objectContaining({
        code: "ERR_IO",
        message: `${directory} cannot be used: no such file or directory (ENOENT).`,
      }),
    );
  });

  it("does not remove a lock that was taken over meanwhile", () => {
    const path = join(temporaryDirectory(), "lock");
    const lock = lockNow(path, "runs/mine", "ERR_RUN");
    const other = lockOf(process.ppid);
    writeFileSync(path, other);
    lock.release();
    expect(readFileSync(path, "utf8")).toBe(other);
  });

  it("has exactly one winner where six processes take over a stale lock at once, 40 times", {
    timeout: 300_000,
  }, async () => {
    const root = temporaryDirectory();
    const child = fileURLToPath(new URL("../support/lock-child.ts", import.meta.url));
    const [processes, rounds] = [6, 40];
    const paths = Array.from({ length: rounds }, (_, i) => join(root, `lock-${i}`));
    for (const [i, path] of paths.entries()) {
      const stale = lockOf(process.ppid, { ended: true });
      writeFileSync(path, stale);
      // In every other round, a process has also ended while it took over.
      if (i % 2 === 1)
        writeFileSync(`${path}.${JSON.parse(stale).token}`, lockOf(process.ppid, { ended: true }));
    }
    const won: number[][] = paths.map(() => []);
    const children = Array.from({ length: processes }, () => {
      const process_ = spawn(process.execPath, ["--import", "jiti/register", child, ...paths], {
        stdio: ["pipe", "pipe", "inherit"],
      });
      return process_;
    });
    const lines = children.map((process_) => linesOf(process_.stdout));
    const everyone = () => Promise.all(lines.map(async (line) => (await line.next()).value));
    expect(await everyone()).toEqual(Array(processes).fill("ready"));
    for (let round = 0; round < rounds; round++) {
      for (const process_ of children) process_.stdin.write("go\n");
      for (const [i, answer] of (await everyone()).entries()) if (answer === "won") won[round]!.push(i);
    }
    for (const process_ of children) process_.stdin.end();
    expect(won.map((winners) => winners.length)).toEqual(Array(rounds).fill(1));
  });
});

async function* linesOf(stream: NodeJS.ReadableStream): AsyncGenerator<string, string> {
  let rest = "";
  for await (const chunk of stream) {
    const parts = `${rest}${chunk}`.split("\n");
    rest = parts.pop()!;
    yield* parts;
  }
  return "ended";
}

describe("a lock of another container", () => {
  it("is respected while its holder touches it, and taken over when it no longer does", () => {
    const path = join(temporaryDirectory(), "lock");
    writeFileSync(path, lockOf(1, { namespace: "pid:[1]" }));
    const take = () => lockNow(path, "the run", "ERR_RUN");
    expect(take).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
    expect(take).toThrow(/in use by process 1 of another container/);
    const before = Date.now() / 1000 - 180;
    utimesSync(path, before, before);
    lockNow(path, "the run", "ERR_RUN", 100).release();
    expect(existsSync(path)).toBe(false);
  });

  it("is respected after the clock has jumped a day ahead, and taken over after it has jumped a day back", () => {
    const path = join(temporaryDirectory(), "lock");
    writeFileSync(path, lockOf(1, { namespace: "pid:[1]" }));
    const take = () => lockNow(path, "the run", "ERR_RUN", 1000);
    const day = 24 * 3600 * 1000;
    const holder = spawn("sh", ["-c", 'while touch "$0"; do sleep 0.05; done', path]);
    const clock = vi.spyOn(Date, "now");
    try {
      clock.mockReturnValue(Date.now() + day);
      expect(take).toThrow(/in use by process 1 of another container/);
      holder.kill("SIGKILL");
      clock.mockReturnValue(Date.now() - 2 * day);
      take().release();
      expect(existsSync(path)).toBe(false);
    } finally {
      clock.mockRestore();
      holder.kill("SIGKILL");
    }
  });

  it("of another machine is never taken over at once", () => {
    const path = join(temporaryDirectory(), "lock");
    writeFileSync(path, lockOf(1, { host: "elsewhere", boot: "other" }));
    utimesSync(path, 1, 1);
    expect(() => lockNow(path, "the run", "ERR_RUN")).toThrow(/process 1 on elsewhere/);
  });
});
