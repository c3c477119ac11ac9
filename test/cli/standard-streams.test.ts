import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { temporaryDirectory } from "../support/files-and-servers.ts";

const child = fileURLToPath(new URL("../support/streams-child.ts", import.meta.url));

/** Runs the child in a shell that does `before` first, with `after` behind its command line. */
function run(length: number, after: string, before = "") {
  const command = `${before} exec "$0" --import jiti/register "$1" ${length} ${after}`;
  return spawnSync("bash", ["-c", command, process.execPath, child], { encoding: "utf8" });
}

test("output that a full disk takes only in part is ERR_IO, and so is output that it does not take", () => {
  const file = join(temporaryDirectory(), "out");
  // A file size limit of 64 kB: as on a full disk, a write beyond it is made in part.
  const cut = run(100_000, `> "${file}"`, 'trap "" XFSZ; ulimit -f 64;');
  expect([cut.status, readFileSync(file).length]).toEqual([1, 65_536]);
  expect(cut.stderr).toMatch(/^nlac: ERR_IO: standard output cannot be used: file too large \(EFBIG\)\.$/m);
  const full = run(100, "> /dev/full");
  expect(full.status).toBe(1);
  expect(full.stderr).toMatch(/^nlac: ERR_IO: standard output cannot be used: no space left .+ENOSPC/m);
  expect(run(100_000, `> "${file}"`).status).toBe(0);
  expect(readFileSync(file).length).toBe(100_001);
});

test("notes that cannot be written do not end the program", () => {
  const full = run(10, "2> /dev/full");
  expect([full.status, full.stdout]).toEqual([0, "xxxxxxxxxx\n"]);
  // Their reader has ended: after the first line, the pipe is closed.
  const closed = run(10, "2> >(head -n 1 > /dev/null)");
  expect([closed.status, closed.stdout]).toEqual([0, "xxxxxxxxxx\n"]);
});

test("a reader of the output that closes early is no error", () => {
  const closed = run(1_000_000, "> >(head -c 1 > /dev/null)");
  expect([closed.status, closed.stderr]).toEqual([0, "a note\nanother note\n"]);
});
