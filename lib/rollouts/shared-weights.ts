/**
 * Versions of the weights on a path that servers read too: one directory each, complete or absent.
 */

import { open, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { fromFileSystem, NlacError } from "../base/errors.ts";
import { makeDirectory, syncDirectory } from "../files/disk.ts";
import { type Lock, lockNow } from "../files/lock.ts";

const named = /^version-\d{6,}(\.partial)?$/;

export class SharedWeights {
  readonly #path: string;
  readonly #lock: Lock;

  private constructor(path: string, lock: Lock) {
    this.#path = path;
    this.#lock = lock;
  }

  /**
   * Locks the directory, and removes the versions that an earlier run left there.
   * @throws NlacError ERR_ROLLOUTS if another process uses it, ERR_IO
   */
  static async open(path: string): Promise<SharedWeights> {
    makeDirectory(path);
    const shared = new SharedWeights(path, lockNow(join(path, "nlac.lock"), path, "ERR_ROLLOUTS"));
    await shared.keepOnly(undefined);
    return shared;
  }

  /**
   * Writes a version beside its place, syncs it and renames it.
   * @returns its directory
   * @throws NlacError ERR_IO, and as `write`
   */
  async add(version: number, write: (directory: string) => Promise<void>): Promise<string> {
    const directory = join(this.#path, `version-${String(version).padStart(6, "0")}`);
    const beside = `${directory}.partial`;
    try {
      await write(beside);
      for (const file of await readdir(beside)) await sync(join(beside, file));
      syncDirectory(beside);
      await rename(beside, directory);
      syncDirectory(this.#path);
    } catch (error) {
      await rm(beside, { recursive: true, force: true }).catch(() => {});
      throw error instanceof NlacError ? error : fromFileSystem(error, beside);
    }
    return directory;
  }

  /** Removes all versions but one. Throws ERR_IO, after it has removed the others that it can. */
  async keepOnly(directory: string | undefined): Promise<void> {
    try {
      const failures: unknown[] = [];
      for (const name of await readdir(this.#path)) {
        const path = join(this.#path, name);
        if (!named.test(name) || path === directory) continue;
        await rm(path, { recursive: true }).catch((error: unknown) => failures.push(error));
      }
      if (failures.length > 0) throw failures[0];
    } catch (error) {
      throw fromFileSystem(error, this.#path);
    }
  }

  /** Removes all versions and unlocks the directory. */
  async close(): Promise<void> {
    await this.keepOnly(undefined).catch(() => {}); // the next run removes them
    this.#lock.release();
  }
}

async function sync(path: string): Promise<void> {
  const file = await open(path, "r");
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}
