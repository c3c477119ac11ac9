/** One temporary directory for all files that tests write; it is removed after the last test. */

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export default function setup(): () => void {
  const before = process.env.TMPDIR;
  const directory = mkdtempSync(join(tmpdir(), "nlac-tests-"));
  process.env.TMPDIR = directory;
  return () => {
    if (before === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = before;
    rmSync(directory, { recursive: true, force: true });
  };
}
