/** Files that are on disk when a call returns. */

import {
  closeSync,
  existsSync,
  fsyncSync,
  lstatSync,
  openSync,
  realpathSync,
  renameSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname } from "node:path";
import { getSystemErrorMap } from "node:util";
import { NlacError } from "../base/errors.ts";
import { onDisk, removeIfPossible, syncDirectory } from "./disk.ts";

/** Throws ERR_IO if `writeAtomically` could not write `path`. Changes no file. */
export function requireWritable(path: string): void {
  const { target, isSpecial } = behind(path);
  if (isSpecial) return;
  const beside = temporary(target);
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
 * old file is then unchanged. Links are followed. A device or a pipe is written to.
 */
export function writeAtomically(path: string, content: string | Uint8Array): void {
  const { target, isSpecial } = behind(path);
  const beside = temporary(target);
  try {
    if (isSpecial) {
      writeFileSync(target, content);
      return;
    }
    writeSynced(beside, content, "w");
    renameSync(beside, target);
    syncDirectory(dirname(target));
  } catch (error) {
    if (!isSpecial) removeIfPossible(beside);
    throw unwritable(path, error);
  }
}

const temporary = (path: string): string => `${path}.${process.pid}.partial`;

/**
 * The file that `path` means, and whether it is a device or a pipe, as /dev/stdout may be: a file
 * that is renamed to a link or a device takes its place. Throws ERR_IO for a directory.
 */
function behind(path: string): { target: string; isSpecial: boolean } {
  return onDisk(path, () => {
    const found = statSync(path, { throwIfNoEntry: false });
    if (found?.isDirectory()) throw new NlacError("ERR_IO", `${path} is a directory: name a file.`);
    const isSpecial = found !== undefined && !found.isFile();
    const isLink = found?.isFile() && lstatSync(path).isSymbolicLink();
    return { target: isLink ? realpathSync(path) : path, isSpecial };
  });
}

/** Does not name the temporary file. */
function unwritable(path: string, cause: unknown): NlacError {
  const { code, errno, message } = cause as NodeJS.ErrnoException;
  const [, reason] = getSystemErrorMap().get(errno ?? 0) ?? [];
  const told = reason === undefined ? message : `${reason} (${code})`;
  const why = existsSync(dirname(path)) ? told : `there is no directory ${dirname(path)}`;
  return new NlacError("ERR_IO", `${path} cannot be written: ${why}.`, { cause });
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
