/**
 * Lock files: one process at a time holds a path. Used for runs, recordings, downloads and builds.
 *
 * A lock is created complete, by linking a private file to its path, so exactly one process
 * succeeds. If the holder has ended, the lock is taken over: its file is replaced by renaming. Only
 * the process that holds `<lock>.<token of the ended holder>`, itself such a lock, may do that, and
 * it checks first that the ended holder's token is still in the file. So each lock has one
 * successor, however many processes try at once. Holders touch their locks every 10 seconds,
 * because the processes of other containers and machines cannot be checked.
 */

import { randomUUID } from "node:crypto";
import {
  constants,
  copyFileSync,
  linkSync,
  lstatSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
} from "node:fs";
import { dirname, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { type ErrorCode, fromFileSystem, NlacError } from "../base/errors.ts";
import {
  describeProcess,
  hasEnded,
  identify,
  isInOtherContainer,
  processIdentity,
} from "../base/processes.ts";
import { makeDirectory, onDisk, readText, removeIfPossible } from "./disk.ts";
import { writeSynced } from "./write-atomically.ts";

const holderSchema = processIdentity.extend({ token: z.uuid() });

type Holder = z.infer<typeof holderSchema>;

/** A lock that this process holds until `release`, or until it ends. */
export interface Lock {
  release(): void;
}

/** Age at which a lock that its holder no longer touches is stale, in milliseconds. */
const defaultStaleMs = 60_000;

/** How long `lockNow` watches a lock of another container: three touches, in milliseconds. */
const watchingMs = defaultStaleMs / 2;

/** Locks that this process holds. */
const held = new Set<Lock>();
process.on("exit", () => {
  for (const lock of held) lock.release();
});

/**
 * Locks `path`, or fails: at once, except that a lock of another container that seems to be
 * abandoned is watched for `watchMs` first, without giving turns to the event loop.
 *
 * @param of what the lock protects, for the message
 * @throws NlacError `code` when another process, or another user in this one, holds it; ERR_IO
 */
export function lockNow(path: string, of: string, code: ErrorCode, watchMs: number = watchingMs): Lock {
  const taken = take(path, (holder) => hasEnded(holder) || isSilent(path, holder, watchMs));
  if (typeof taken === "string") return holding(path, taken, defaultStaleMs);
  const advice = `If that is not nlac, delete ${path}.`;
  throw new NlacError(code, `${of} is in use by ${taken.holder}. ${advice}`);
}

export interface LockOptions {
  /** Called once when another process holds the lock. */
  onWait?: (holder: string) => void;
  /** Interval between checks, in milliseconds. Default 250. */
  pollMs?: number;
  /**
   * A lock whose holder cannot be checked (on another machine) is taken over if it is not touched
   * for this long while this process waits, in milliseconds. Default 60 000.
   */
  staleMs?: number;
  /** Ends the wait; `withLock` then throws an AbortError. */
  signal?: AbortSignal;
}

/** Runs `body` while holding `path`; waits for other holders. Throws ERR_IO. */
export async function withLock<T>(
  path: string,
  body: () => Promise<T>,
  options: LockOptions = {},
): Promise<T> {
  const { pollMs = 250, staleMs = defaultStaleMs, signal } = options;
  makeDirectory(dirname(path));
  const watch = new Watch(path, staleMs);
  let waited = false;
  let taken = take(path, watch.hasEnded);
  while (typeof taken !== "string") {
    if (!waited) options.onWait?.(taken.holder);
    waited = true;
    await sleep(pollMs, undefined, { signal });
    taken = take(path, watch.hasEnded);
  }
  const lock = holding(path, taken, staleMs);
  try {
    return await body();
  } finally {
    lock.release();
  }
}

/** Watches for how long a lock was not touched, by this process's clock. */
class Watch {
  readonly #path: string;
  readonly #staleMs: number;
  #seen = "";
  #since = 0;

  constructor(path: string, staleMs: number) {
    this.#path = path;
    this.#staleMs = staleMs;
  }

  readonly hasEnded = (holder: Holder): boolean => {
    if (hasEnded(holder)) return true;
    const { boot, namespace } = identify();
    if (holder.boot === boot && holder.namespace === namespace) return false;
    const seen = `${holder.token} ${statSync(this.#path, { throwIfNoEntry: false })?.mtimeMs}`;
    if (seen !== this.#seen) [this.#seen, this.#since] = [seen, performance.now()];
    return performance.now() - this.#since > this.#staleMs;
  };
}

/** Takes `path` and returns the token in it, or says who holds it. */
function take(path: string, ended: (holder: Holder) => boolean): string | { holder: string } {
  const own = { ...identify(), token: randomUUID() };
  const draft = `${path}.${own.token}.new`;
  try {
    // On disk before it is linked, so that a power failure leaves no empty lock.
    writeDraft(draft, `${JSON.stringify(own)}\n`);
    for (;;) {
      if (linked(draft, path)) return own.token;
      const holder = readHolder(path);
      if (holder === "none") continue;
      if (holder === "unreadable") return { holder: "a process that its lock file does not name" };
      if (!ended(holder)) return { holder: describeProcess(holder) };
      const replaced = replacing(path, holder.token, () => renameSync(draft, path));
      if (replaced === "done") return own.token;
      if (replaced !== "changed") return replaced;
    }
  } finally {
    removeIfPossible(draft);
  }
}

/** Throws ERR_IO that names the directory: nobody knows the draft. */
function writeDraft(draft: string, content: string): void {
  try {
    writeSynced(draft, content, "wx");
  } catch (error) {
    const { message, code, errno } = error as NodeJS.ErrnoException;
    const cause = Object.assign(new Error(message, { cause: error }), { code, errno });
    throw fromFileSystem(cause, resolve(dirname(draft)));
  }
}

/**
 * Runs `change` if `path` still has `token`, or says who is changing it; one process at a time may.
 */
function replacing(path: string, token: string, change: () => void): "done" | "changed" | { holder: string } {
  const right = `${path}.${token}`;
  const taken = take(right, hasEnded);
  if (typeof taken !== "string") return taken;
  try {
    const holder = readHolder(path);
    if (typeof holder === "string" || holder.token !== token) return "changed";
    onDisk(path, change);
    return "done";
  } finally {
    removeIfPossible(right);
  }
}

/**
 * A holder in another container, perhaps one that was restarted, that has not touched its lock
 * lately. The time of the last touch alone proves nothing: the clock may have jumped since then.
 */
function isSilent(path: string, holder: Holder, watchMs: number): boolean {
  if (!isInOtherContainer(holder)) return false;
  const touched = () => statSync(path, { throwIfNoEntry: false })?.mtimeMs;
  const last = touched();
  if (last === undefined || Math.abs(Date.now() - last) <= 2 * defaultStaleMs) return false;
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, watchMs); // sleeps
  return touched() === last;
}

function holding(path: string, token: string, staleMs: number): Lock {
  const heartbeat = setInterval(() => touch(path), staleMs / 6).unref();
  const lock = {
    release() {
      if (!held.delete(lock)) return;
      clearInterval(heartbeat);
      try {
        replacing(path, token, () => rmSync(path, { force: true }));
      } catch {
        // The takeover failed, perhaps for lack of space. It is not needed here, because this
        // holder runs.
        removeOwn(path, token);
      }
    },
  };
  held.add(lock);
  return lock;
}

function removeOwn(path: string, token: string): void {
  try {
    const holder = readHolder(path);
    if (typeof holder !== "string" && holder.token === token) rmSync(path, { force: true });
  } catch {
    // The directory was removed or is read-only now: the lock ends with this process.
  }
}

function readHolder(path: string): Holder | "none" | "unreadable" {
  try {
    return holderSchema.parse(JSON.parse(readText(path)));
  } catch (error) {
    const missing = (error as NodeJS.ErrnoException).code === "ENOENT";
    // A dead link can neither be read nor created.
    return missing && lstatSync(path, { throwIfNoEntry: false }) === undefined ? "none" : "unreadable";
  }
}

/** Whether `path` was created as a link to `draft`. */
function linked(draft: string, path: string): boolean {
  try {
    linkSync(draft, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    return copied(draft, path);
  }
}

/** For file systems without links. A process that reads the copy too early sees it as held. */
function copied(draft: string, path: string): boolean {
  try {
    copyFileSync(draft, path, constants.COPYFILE_EXCL);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw fromFileSystem(error, path);
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
