/** Files that are on disk when a call returns. */

import { closeSync, fsyncSync, openSync, renameSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { NlacError } from "../base/errors.ts";
import { removeIfPossible, syncDirectory } from "./disk.ts";

/**
 * Writes a temporary file next to `path`, syncs it, and renames it to `path`. Throws ERR_IO; the
 * old file is then unchanged.
 */
export function writeAtomically(path: string, content: string | Uint8Array): void {
  const beside = `${path}.${process.pid}.partial`;
  try {
    writeSynced(beside, content, "w");
    renameSync(beside, path);
    syncDirectory(dirname(path));
  } catch (error) {
    removeIfPossible(beside);
    throw new NlacError("ERR_IO", `${path} cannot be written: ${(error as Error).message}`, { cause: error });
  }
}

/** Writes and syncs a file, opened with `flag`. Throws Node's errors. */
export function writeSynced(path: string, content: string | Uint8Array, flag: "w" | "wx"): void {
  const file = openSync(path, flag);
  try {
    writeFileSync(file, content);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}
