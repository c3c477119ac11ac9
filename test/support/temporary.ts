/**
 * One temporary directory for all files that tests write; it is removed after the last test. vitest
 * calls this once for every project, and the first call makes it.
 */

import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";

const prefix = "nlac-tests-";

export default function setup(): (() => void) | undefined {
  const before = process.env.TMPDIR;
  if (before !== undefined && basename(before).startsWith(prefix)) return undefined;
  const directory = mkdtempSync(join(tmpdir(), prefix));
  process.env.TMPDIR = directory;
  // Processes that load lib/ through jiti find it compiled, also by earlier runs.
  const compiled = fileURLToPath(new URL("../../node_modules/.cache/nlac-tests", import.meta.url));
  mkdirSync(compiled, { recursive: true });
  symlinkSync(compiled, join(directory, "jiti"));
  return () => {
    if (before === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = before;
    rmSync(directory, { recursive: true, force: true });
  };
}
