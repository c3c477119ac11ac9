/** A few runs of each campaign, on lib/ compiled to dist/. `npm run torture` makes long ones. */

import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";

const script = fileURLToPath(new URL("../../scripts/torture.mjs", import.meta.url));
const built = existsSync(new URL("../../dist/index.js", import.meta.url));

function torture(...args: string[]) {
  const env = { ...process.env, NLAC_THREADS: "1" };
  return spawnSync(process.execPath, [script, ...args], { encoding: "utf8", env });
}

test.skipIf(!built)("every campaign describes itself", () => {
  const { stdout, status } = torture("--list");
  expect(status).toBe(0);
  for (const name of ["crashes", "environments", "faults", "kills", "numbers"])
    expect(stdout).toMatch(new RegExp(`^${name} +\\S`, "m"));
});

test("an unknown campaign is refused", () => {
  const { stderr, status } = torture("no-such");
  expect(status).toBe(2);
  expect(stderr).toContain("kills");
});

describe.skipIf(!built)("a short form of", () => {
  test.each([
    ["crashes", 2],
    ["environments", 4],
    ["faults", 1],
    ["kills", 2],
    ["numbers", 7],
  ])(
    "%s fails nowhere",
    (name, runs) => {
      const { stdout, status } = torture(name, "--runs", String(runs), "--seed", "1");
      expect(stdout).toContain(`| ${name} | ${runs} | 0 |`);
      expect(status).toBe(0);
    },
    600_000,
  );
});
