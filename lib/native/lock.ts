/**
 * A lock file: one process at a time does `body`, others wait. The holder touches the file while it works;
 * one whose holder is dead, or that was not touched for a minute (another host), is stale and is taken over.
 */

import {
  closeSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeSync,
} from "node:fs";
import { hostname } from "node:os";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isAlive } from "../base/processes.ts";

export interface LockOptions {
  /** Called once when another process holds the lock. */
  onWait?: (holder: string) => void;
  /** Milliseconds between looks. Default 250. */
  pollMs?: number;
  /** A lock untouched for this long is stale. Default 60 000. */
  staleMs?: number;
}

export async function withLock<T>(
  path: string,
  body: () => Promise<T>,
  options: LockOptions = {},
): Promise<T> {
  const { pollMs = 250, staleMs = 60_000 } = options;
  mkdirSync(dirname(path), { recursive: true });
  let waited = false;
  while (!take(path)) {
    if (isStale(path, staleMs)) {
      evict(path, staleMs);
      continue;
    }
    if (!waited) options.onWait?.(readHolder(path));
    waited = true;
    await sleep(pollMs);
  }
  const heartbeat = setInterval(() => touch(path), staleMs / 6);
  heartbeat.unref();
  const release = () => rmSync(path, { force: true });
  process.once("exit", release);
  try {
    return await body();
  } finally {
    clearInterval(heartbeat);
    process.removeListener("exit", release);
    release();
  }
}

function take(path: string): boolean {
  let file: number;
  try {
    file = openSync(path, "wx");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
  writeSync(file, `${process.pid} ${hostname()}\n`);
  closeSync(file);
  return true;
}

function isStale(path: string, staleMs: number): boolean {
  try {
    const age = Date.now() - statSync(path).mtimeMs;
    if (age > staleMs) return true;
    const [pid, host] = readHolder(path).split(" ");
    // A file still empty is one just being written.
    return pid !== "" && host === hostname() && !isAlive(Number(pid));
  } catch {
    return false; // gone meanwhile: the next attempt takes it
  }
}

/** Renaming is atomic: of several that see a stale lock, one moves it away. It looks again at what it moved. */
function evict(path: string, staleMs: number): void {
  const aside = `${path}.stale.${process.pid}`;
  try {
    renameSync(path, aside);
  } catch {
    return;
  }
  if (!isStale(aside, staleMs)) {
    // A fresh lock slipped in between; hand it back.
    renameSync(aside, path);
    return;
  }
  rmSync(aside, { force: true });
}

function readHolder(path: string): string {
  try {
    return readFileSync(path, "utf8").trim();
  } catch {
    return "";
  }
}

function touch(path: string): void {
  try {
    const now = new Date();
    utimesSync(path, now, now);
  } catch {
    // Removed from outside: nothing to keep alive.
  }
}
