/** Unpacks a wheel (a zip file). No member can be written outside the directory, and no link is made. */

import { createWriteStream, mkdirSync } from "node:fs";
import { dirname, isAbsolute, join, normalize, sep } from "node:path";
import { pipeline } from "node:stream/promises";
import yauzl, { type Entry } from "yauzl";
import { NlacError } from "../base/errors.ts";

const FILE_TYPE = 0o170000;
const LINK = 0o120000;

/** Returns the paths written, relative to `directory`. Throws ERR_DOWNLOAD for a damaged or hostile archive. */
export async function unzip(archive: string, directory: string): Promise<string[]> {
  const damaged = (reason: string, cause?: unknown) =>
    new NlacError("ERR_DOWNLOAD", `${archive}: ${reason}`, { cause });
  const written: string[] = [];
  try {
    // Sizes are checked while a member is read, so that none unpacks to more than it declares.
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

/** The member's path within the directory, or undefined where it would leave it or is a link. */
export function memberPath(entry: Pick<Entry, "fileName" | "externalFileAttributes">): string | undefined {
  const name = entry.fileName;
  if (name.includes("\0") || name.includes("\\") || isAbsolute(name) || name.split("/").includes(".."))
    return undefined;
  if (((entry.externalFileAttributes >>> 16) & FILE_TYPE) === LINK) return undefined;
  const path = normalize(name);
  return path === "." || path.startsWith(`..${sep}`) ? undefined : path;
}
