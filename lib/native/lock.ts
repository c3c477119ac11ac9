/**
 * A lock file: one process at a time runs `body`, others wait. The holder touches the file
 * regularly. A lock is stale and taken over if its holder is dead, or if it has not been touched
 * for a minute (a holder on another host).
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
  /** Interval between checks, in milliseconds. Default 250. */
  pollMs?: number;
  /** Age at which an untouched lock is stale, in milliseconds. Default 60 000. */
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
    // An empty file is just being written.
    return pid !== "" && host === hostname() && !isAlive(Number(pid));
  } catch {
    return false; // removed meanwhile: try to take it
  }
}

/** Removes a stale lock. The rename is atomic, so only one process gets it, and checks it again. */
function evict(path: string, staleMs: number): void {
  const aside = `${path}.stale.${process.pid}`;
  try {
    renameSync(path, aside);
  } catch {
    return;
  }
  if (!isStale(aside, staleMs)) {
    // Another process has just taken the lock: put it back.
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
    // The lock was removed by someone else.
  }
}
