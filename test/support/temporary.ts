/**
 * One temporary directory for all files that tests write; it is removed after the last test. vitest
 * calls this once for every project, and the first call makes it.
 */

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";

const prefix = "nlac-tests-";

export default function setup(): (() => void) | undefined {
  const before = process.env.TMPDIR;
  if (before !== undefined && basename(before).startsWith(prefix)) return undefined;
  const directory = mkdtempSync(join(tmpdir(), prefix));
  process.env.TMPDIR = directory;
  return () => {
    if (before === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = before;
    rmSync(directory, { recursive: true, force: true });
  };
}
