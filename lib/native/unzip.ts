/** Unpacks a wheel (a zip file). Refuses links and members outside the directory. */

import { createWriteStream, mkdirSync } from "node:fs";
import { dirname, isAbsolute, join, normalize, sep } from "node:path";
import { pipeline } from "node:stream/promises";
import yauzl, { type Entry } from "yauzl";
import { NlacError } from "../base/errors.ts";

const FILE_TYPE = 0o170000;
const LINK = 0o120000;

/** Returns the written paths relative to `directory`. Throws ERR_DOWNLOAD for a bad archive. */
export async function unzip(archive: string, directory: string): Promise<string[]> {
  const damaged = (reason: string, cause?: unknown) =>
    new NlacError("ERR_DOWNLOAD", `${archive}: ${reason}`, { cause });
  const written: string[] = [];
  try {
    // yauzl checks sizes while it reads, so that no member is larger than declared.
    const zip = await yauzl.openPromise(archive, { validateEntrySizes: true, strictFileNames: true });
    try {
      for await (const entry of zip.eachEntry()) {
        const path = memberPath(entry);
        if (path === undefined) throw damaged(`the member ${JSON.stringify(entry.fileName)} is refused`);
        if (entry.fileName.endsWith("/")) continue;
        const target = join(directory, path);
        mkdirSync(dirname(target), { recursive: true });
        const mode = (entry.externalFileAttributes >>> 16) & 0o111 ? 0o755 : 0o644;
        await pipeline(await zip.openReadStreamPromise(entry), createWriteStream(target, { mode }));
        written.push(path);
      }
    } finally {
      zip.close();
    }
  } catch (error) {
    throw error instanceof NlacError ? error : damaged((error as Error).message, error);
  }
  return written;
}

/** The member's path in the directory; undefined if it is a link or outside the directory. */
export function memberPath(entry: Pick<Entry, "fileName" | "externalFileAttributes">): string | undefined {
  const name = entry.fileName;
  if (name.includes("\0") || name.includes("\\") || isAbsolute(name) || name.split("/").includes(".."))
    return undefined;
  if (((entry.externalFileAttributes >>> 16) & FILE_TYPE) === LINK) return undefined;
  const path = normalize(name);
  return path === "." || path.startsWith(`..${sep}`) ? undefined : path;
}
