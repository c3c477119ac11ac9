/** File access with coded errors and checked contents. */

import {
  closeSync,
  constants,
  existsSync,
  fstatSync,
  fsync,
  fsyncSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeSync,
} from "node:fs";
import { dirname, join, resolve } from "node:path";
import { promisify } from "node:util";
import { z } from "zod";
import { type ErrorCode, fromFileSystem, NlacError } from "../base/errors.ts";
import { firstIssue } from "../base/validation.ts";

/** Calls `use`. Turns file system errors into ERR_IO that names `path`. */
export function onDisk<T>(path: string, use: () => T): T {
  try {
    return use();
  } catch (error) {
    throw fromFileSystem(error, path);
  }
}

/**
 * Creates a directory and its parents durably, unless it exists. Throws ERR_IO. Node's recursive
 * mkdir never returns for a path below a directory that refuses new entries with ENOENT, as /proc
 * does.
 */
export function makeDirectory(path: string): void {
  const exists = () => statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false;
  if (onDisk(path, exists)) return;
  const parent = dirname(resolve(path));
  if (parent !== resolve(path)) makeDirectory(parent);
  try {
    mkdirSync(path);
  } catch (error) {
    if (!exists()) throw fromFileSystem(error, path); // else another process has created it
  }
  syncDirectory(parent);
}

/** The text of a regular file: a pipe would block the process. Throws Node's errors. */
export function readText(path: string): string {
  if (!statSync(path).isFile()) throw new Error("It is not a file.");
  return readFileSync(path, "utf8");
}

/** Flags for opening a file of others: opening a pipe would wait for a writer. */
export const readFlags = constants.O_RDONLY | constants.O_NONBLOCK;

/** Opens a regular file for reading. Throws ERR_IO, also for anything else. */
export function openRegular(path: string): number {
  return onDisk(path, () => {
    const fd = openSync(path, readFlags);
    if (fstatSync(fd).isFile()) return fd;
    closeSync(fd);
    throw notRegular(path);
  });
}

export function notRegular(path: string): NlacError {
  return new NlacError("ERR_IO", `${path} is not a regular file.`);
}

/** The JSON value in `path`. Throws `code` if it is unreadable or does not fit `schema`. */
export function readJson<T>(path: string, schema: z.ZodType<T>, code: ErrorCode): T {
  try {
    return schema.parse(JSON.parse(readText(path)));
  } catch (error) {
    throw new NlacError(code, `${path} cannot be read: ${whyNot(error)}`, { cause: error });
  }
}

/**
 * Why a file is not the expected JSON, in one line; a JSON parser's message would quote the file with
 * its line breaks.
 */
export function whyNot(error: unknown): string {
  if (error instanceof SyntaxError) return "it is not JSON.";
  if (!(error instanceof z.ZodError)) return (error as Error).message;
  return `${firstIssue(error)}.`;
}

/** Throws `code` with `advice` unless `path` is a new or empty directory; ERR_IO. */
export function requireEmpty(path: string, code: ErrorCode, advice: string): void {
  const entries = onDisk(path, () => (existsSync(path) ? readdirSync(path) : []));
  if (entries.length > 0) throw new NlacError(code, `${path} is not empty. ${advice}`);
}

/** Removes what a failed command has written into an empty directory, as far as possible. */
export function emptyDirectory(path: string): void {
  try {
    for (const name of readdirSync(path)) rmSync(join(path, name), { recursive: true, force: true });
  } catch {
    // The error that made this necessary is thrown, and says more.
  }
}

/** Removes what nobody needs any more: on a full disk it would keep others from writing. */
export function removeIfPossible(path: string): void {
  try {
    rmSync(path, { recursive: true, force: true });
  } catch {
    // It does no other harm, and if a write has failed, that error says more.
  }
}

/**
 * A running hash: the part of Node's Hash that is used here, so that declarations need no Node
 * types.
 */
export interface RunningHash {
  update(data: Uint8Array): unknown;
  digest(encoding: "hex"): string;
  copy(): RunningHash;
}

/** The beginning of an append-only file: its length, and the hash of its bytes. */
export interface FileStart {
  bytes: number;
  hash: RunningHash;
}

/** Makes the names within a directory durable: files created, renamed or removed. Throws ERR_IO. */
export function syncDirectory(path: string): void {
  onDisk(path, () => {
    const fd = openSync(path, "r");
    try {
      fsyncSync(fd);
    } catch (error) {
      // Some file systems cannot sync directories.
      if ((error as NodeJS.ErrnoException).code !== "EINVAL") throw error;
    } finally {
      closeSync(fd);
    }
  });
}

/**
 * Renames a file whose content, and then whose name, is on disk: after a power failure the file
 * with this name is whole. Throws ERR_IO.
 */
export function renameSynced(from: string, to: string): void {
  syncFile(from);
  onDisk(from, () => renameSync(from, to));
  syncDirectory(dirname(to));
}

/** Flushes a file's content to disk. Throws ERR_IO. */
export function syncFile(path: string): void {
  onDisk(path, () => {
    const fd = openSync(path, "r");
    try {
      fsyncSync(fd);
    } finally {
      closeSync(fd);
    }
  });
}

/** A file for appending, in an existing directory. Every method throws ERR_IO, naming the file. */
export class AppendOnlyFile {
  #path: string;
  readonly #fd: number;
  #hash: RunningHash | undefined;
  #bytes: number;
  /** Whether a partial write may have left bytes behind the end. */
  #torn = false;
  /** Whether the file's name is known to be on disk. */
  #named = false;

  /**
   * Opens `path`, truncated to `start` if given: its length at a checkpoint. With a hash, the file
   * knows the hash of its content.
   * @throws NlacError ERR_RUN when it is shorter than that
   */
  constructor(path: string, start?: number | FileStart) {
    this.#path = path;
    const bytes = typeof start === "object" ? start.bytes : start;
    this.#hash = typeof start === "object" ? start.hash.copy() : undefined;
    this.#fd = onDisk(path, () => openSync(path, "a+"));
    const { size } = fstatSync(this.#fd);
    if (bytes !== undefined && bytes > size) {
      closeSync(this.#fd);
      throw new NlacError("ERR_RUN", `${path} has ${size} bytes; at the checkpoint it had ${bytes}.`);
    }
    this.#bytes = bytes ?? size;
    if (this.#bytes !== size) onDisk(path, () => ftruncateSync(this.#fd, this.#bytes));
  }

  get path(): string {
    return this.#path;
  }

  /** Length in bytes. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Gives the file another name, in place of any file there. The next `sync` makes it durable. */
  moveTo(path: string): void {
    onDisk(path, () => renameSync(this.#path, path));
    this.#path = path;
    this.#named = false;
  }

  /** Appends all of `data` or nothing: a partial write is removed. */
  append(data: Uint8Array): void {
    onDisk(this.path, () => {
      if (this.#torn) ftruncateSync(this.#fd, this.#bytes);
      this.#torn = true;
      try {
        for (let offset = 0; offset < data.length; ) offset += writeSync(this.#fd, data, offset);
      } catch (error) {
        // Removed at once: if the process were killed later, the bytes would stay, and they may
        // contain whole lines.
        this.#removeTorn();
        throw error;
      }
      this.#torn = false;
    });
    this.#bytes += data.length;
    this.#hash?.update(data);
  }

  /**
   * Throws if `path` is no longer this file, or if others have shortened it: what is appended would
   * be lost.
   */
  requireUnchanged(): void {
    const held = onDisk(this.path, () => fstatSync(this.#fd));
    const found = onDisk(this.path, () => statSync(this.path, { throwIfNoEntry: false }));
    const isSame = found?.ino === held.ino && found.dev === held.dev;
    if (isSame && held.size >= this.#bytes) return;
    const what = isSame ? "shortened" : found === undefined ? "deleted" : "replaced";
    throw new NlacError("ERR_IO", `${this.path} was ${what} while it was open for appending.`);
  }

  /** As `append`, and flushes the file. If that fails, `data` is removed again. */
  appendDurably(data: Uint8Array): void {
    const before = this.#bytes;
    const hash = this.#hash?.copy();
    this.append(data);
    try {
      this.sync();
    } catch (error) {
      this.#bytes = before;
      this.#hash = hash;
      this.#torn = true;
      this.#removeTorn();
      throw error;
    }
  }

  /** If this fails, the next `append` repeats it. */
  #removeTorn(): void {
    try {
      ftruncateSync(this.#fd, this.#bytes);
      this.#torn = false;
    } catch {}
  }

  /** Flushes the file and its name to disk. Returns its length in bytes. */
  sync(): number {
    onDisk(this.path, () => fsyncSync(this.#fd));
    if (!this.#named) syncDirectory(dirname(this.path));
    this.#named = true;
    return this.#bytes;
  }

  /**
   * Flushes the file so far without holding the event loop, so that a later `sync` has little to
   * do.
   */
  async syncInBackground(): Promise<void> {
    try {
      await promisify(fsync)(this.#fd);
    } catch (error) {
      throw fromFileSystem(error, this.path);
    }
  }

  /** Flushes a file that was opened with a hash. Returns its length and SHA-256. */
  seal(): { bytes: number; sha256: string } {
    return { bytes: this.sync(), sha256: this.#hash!.copy().digest("hex") };
  }

  close(): void {
    closeSync(this.#fd);
  }
}
