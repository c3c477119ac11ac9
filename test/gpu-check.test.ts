/** scripts/gpu-check.sh, with shell scripts in place of the test programs of a CUDA build. */

import { spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import { inDirectory } from "./support/tiny.ts";

/** A program with `count` cases of a GPU; `needed` of them are counted with --no-skip only, as without a GPU. */
const program = (count: number, needed: number, run: string) => `
case " $* " in
  *" --count "*" --no-skip "*) echo "[doctest] unskipped test cases passing the current filters: ${count + needed}" ;;
  *" --count "*) echo "[doctest] unskipped test cases passing the current filters: ${count}" ;;
  *) ${run} ;;
esac`;
const passes = program(3, 0, "echo 3 passed");

/** The exit status, the rows of the table by step, and the programs that were run. */
function check(programs: Record<string, string>, ...steps: string[]) {
  return inDirectory((directory) => {
    const write = (path: string, text: string) => {
      mkdirSync(dirname(join(directory, path)), { recursive: true });
      writeFileSync(join(directory, path), `#!/bin/bash\n${text}\n`, { mode: 0o755 });
    };
    write("bin/nvidia-smi", "echo a GPU");
    for (const [name, text] of Object.entries(programs)) write(`build/cuda/native/test/${name}`, text);
    mkdirSync(join(directory, "scripts"));
    const script = join(directory, "scripts/gpu-check.sh");
    copyFileSync(join(import.meta.dirname, "../scripts/gpu-check.sh"), script);
    const { status } = spawnSync("bash", [script, ...steps], {
      env: { PATH: `${join(directory, "bin")}:/usr/bin:/bin`, NODE: join(directory, "bin/none") },
      encoding: "utf8",
    });
    const read = (name: string) => readFileSync(join(directory, "build/gpu-check", name), "utf8");
    const rows = read("gpu-check.txt").trim().split("\n");
    const ran = [...read("gpu-check.log").matchAll(/^-- .*\/(\S+)$/gm)].map(([, name]) => name!);
    return { status, rows: Object.fromEntries(rows.map((row) => row.trim().split(/\s+/, 2))), ran };
  });
}

test("programs without cases of a GPU are not run", async () => {
  const { status, rows, ran } = await check({ test_a: passes, test_b: program(0, 0, "exit 1") }, "tests");
  expect({ status, rows, ran }).toEqual({ status: 0, rows: { tests: "passed" }, ran: ["test_a"] });
});

test.each([
  ["does not start", "exit 127"],
  ["sees no GPU, so that it would skip all of its cases", program(0, 2, "exit 1")],
  ["fails", program(2, 0, "exit 1")],
  ["crashes", program(2, 0, "kill -SEGV $$")],
])("a program that %s fails the step, and the others run", async (_, text) => {
  const { status, rows, ran } = await check({ test_a: text, test_b: passes }, "tests", "sanitizer");
  expect({ status, ran }).toEqual({ status: 1, ran: ["test_a", "test_b"] });
  expect([rows.tests, Object.keys(rows)]).toEqual(["FAILED", ["tests", "sanitizer"]]);
});

test("a build without test programs fails", async () => {
  expect(await check({}, "tests")).toMatchObject({ status: 1, rows: { tests: "FAILED" } });
});
