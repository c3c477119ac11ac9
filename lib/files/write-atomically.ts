/** Files that are on disk when a call returns. */

import { closeSync, fsyncSync, openSync, renameSync, statSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { NlacError } from "../base/errors.ts";
import { removeIfPossible, syncDirectory } from "./disk.ts";

/** Throws ERR_IO if `writeAtomically` could not write `path`. Changes no file. */
export function requireWritable(path: string): void {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory())
    throw new NlacError("ERR_IO", `${path} is a directory: name a file.`);
  const beside = temporary(path);
  try {
    closeSync(openSync(beside, "w"));
  } catch (error) {
    throw unwritable(path, error);
  } finally {
    removeIfPossible(beside);
  }
}

/**
 * Writes a temporary file next to `path`, syncs it, and renames it to `path`. Throws ERR_IO; the
 * old file is then unchanged.
 */
export function writeAtomically(path: string, content: string | Uint8Array): void {
  const beside = temporary(path);
  try {
    writeSynced(beside, content, "w");
    renameSync(beside, path);
    syncDirectory(dirname(path));
  } catch (error) {
    removeIfPossible(beside);
    throw unwritable(path, error);
  }
}

const temporary = (path: string): string => `${path}.${process.pid}.partial`;

function unwritable(path: string, cause: unknown): NlacError {
  return new NlacError("ERR_IO", `${path} cannot be written: ${(cause as Error).message}`, { cause });
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
