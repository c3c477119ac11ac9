/** Images of kills, and the log from which they are made. They need lib/ compiled to dist/, and cc. */

import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, truncateSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";

const scripts = join(import.meta.dirname, "../../scripts/torture/support");
const built = existsSync(join(scripts, "../../../dist/index.js"));

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "nlac-images-"));
});
afterEach(() => rmSync(directory, { recursive: true }));

/** Runs a program under the shim in a directory `root` that it logs. Returns the log's path. */
async function logged(program: string, env: NodeJS.ProcessEnv = {}) {
  const { buildShim, shimmed } = await import(join(scripts, "sandbox.mjs"));
  const root = join(directory, "root");
  const log = join(directory, "log");
  if (!existsSync(root)) mkdirSync(root);
  const child = spawnSync(process.execPath, ["-e", `const fs = require("fs");${program}`], {
    env: { ...process.env, ...shimmed(buildShim(directory), root, { log }), ...env },
    cwd: root,
    encoding: "utf8",
  });
  return { root, log, child };
}

const work = (root: string) => `
  const path = (name) => ${JSON.stringify(root)} + "/" + name;
  const a = fs.openSync(path("a.partial"), "w");
  fs.writeSync(a, "one");
  fs.writeSync(1, "wrote one\\n");
  fs.renameSync(path("a.partial"), path("a"));
  fs.writeSync(a, " two");
  try { fs.unlinkSync(path("none")); } catch {}
  fs.writeFileSync(path("b"), "b");
  const b = fs.openSync(path("b"), "a");
  fs.writeSync(b, "bb");
  fs.closeSync(b);
  const other = fs.openSync("/dev/null", "w"); // gets the number of the closed file
  fs.writeSync(other, "not below the root");
  fs.mkdirSync(path("d"));
  fs.writeSync(1, "made d\\n");
`;

describe.skipIf(!built)("the log of file operations", () => {
  test("makes the directory again, also of a process that is killed", async () => {
    const [{ readShimLog }, { followLog }] = await Promise.all(
      ["shim-log.mjs", "images.mjs"].map((file) => import(join(scripts, file))),
    );
    const kill = 'process.kill(process.pid, "SIGKILL");';
    const { root, log, child } = await logged(work(join(directory, "root")) + kill);
    expect(child.signal).toBe("SIGKILL");
    const { operations, printed } = readShimLog(log);
    const at = (line: string) => printed.find((one: { line: string }) => one.line === line)?.after;
    expect(operations.slice(0, at("wrote one")).map((one: { kind: string }) => one.kind)).toEqual([
      "open",
      "write",
    ]);
    expect(at("made d")).toBe(operations.length);
    expect(followLog(root, log)()).toBeUndefined();
  });

  test("tells a directory that is not what was logged, but allows for the last operation", async () => {
    const { followLog } = await import(join(scripts, "images.mjs"));
    const { root, log } = await logged(`fs.writeFileSync("${join(directory, "root/a")}", "0123456789");`);
    const differs = () => {
      const copy = join(directory, "copy");
      spawnSync("cp", [log, copy]);
      return followLog(root, copy)();
    };
    truncateSync(join(root, "a"), 4); // a write that was cut
    expect(differs()).toBeUndefined();
    truncateSync(join(root, "a"), 0); // or did not begin
    expect(differs()).toBeUndefined();
    rmSync(join(root, "a"));
    expect(differs()).toBe(join(root, "a"));
  });
});

test.skipIf(!built)("a kill leaves all operations before it, and a part of a write", async () => {
  const [{ afterKill }, { writeImage }] = await Promise.all(
    ["images.mjs", "crash-image.mjs"].map((file) => import(join(scripts, file))),
  );
  const write = (data: string, offset: number) => ({
    kind: "write",
    path: "/r/a",
    offset,
    data: Buffer.from(data),
  });
  const operations = [{ kind: "open", path: "/r/a", created: true }, write("0123", 0), write("4567", 4)];
  const left = (count: number, at: number) => {
    const target = mkdtempSync(join(directory, "image-"));
    writeImage(afterKill(operations, count, "/r", at), target);
    return existsSync(join(target, "a")) ? readFileSync(join(target, "a"), "utf8") : undefined;
  };
  expect(left(0, 0.5)).toBeUndefined();
  expect([0, 0.3, 0.5, 0.99].map((at) => left(2, at))).toEqual(["0123", "01234", "012345", "01234567"]);
});
