/** A few runs of each campaign, on lib/ compiled to dist/. `npm run torture` makes long ones. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { describe, expect, test } from "vitest";

const script = fileURLToPath(new URL("../../scripts/torture.mjs", import.meta.url));
const built = existsSync(new URL("../../dist/index.js", import.meta.url));
/** The fuzzers are not built here: that takes minutes, and needs clang. */
const fuzzers = existsSync(new URL("../../build/fuzz/native/fuzz/fuzz_config", import.meta.url));

async function torture(...args: string[]) {
  const env = { ...process.env, NLAC_THREADS: "1" };
  const child = spawn(process.execPath, [script, ...args], { stdio: ["ignore", "pipe", "pipe"], env });
  const [stdout, stderr, [status]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, "close"),
  ]);
  return { stdout, stderr, status };
}

test.skipIf(!built)("every campaign describes itself", async () => {
  const { stdout, status } = await torture("--list");
  expect(status).toBe(0);
  for (const name of [
    "binding",
    "control-tokens",
    "crashes",
    "environments",
    "faults",
    "flips",
    "fuzz",
    "kills",
    "mcp",
    "models",
    "numbers",
    "properties",
    "ranks",
    "served",
    "served-crashes",
    "server",
  ])
    expect(stdout).toMatch(new RegExp(`^${name} +\\S`, "m"));
});

test("property tests draw the same cases in every run", () => {
  const cases = () => fc.sample(fc.string(), 20);
  expect(cases()).toEqual(cases());
});

test.skipIf(!built)("the help names the options and the campaigns", async () => {
  const { stdout, status } = await torture("--help");
  expect(status).toBe(0);
  for (const named of ["--runs", "--seed", "--only", "kills", "server"]) expect(stdout).toContain(named);
});

test("an unknown option is refused in one line", async () => {
  const { stderr, status } = await torture("--rnus", "3");
  expect(status).toBe(2);
  expect(stderr).toMatch(/^Unknown option '--rnus'[^\n]*--help\.\n$/);
});

test("an unknown campaign is refused", async () => {
  const { stderr, status } = await torture("no-such");
  expect(status).toBe(2);
  expect(stderr).toContain("kills");
});

describe.skipIf(!built)("a short form of", () => {
  test.each([
    ["binding", 100],
    ["control-tokens", 20],
    ["crashes", 3],
    ["environments", 4],
    ["faults", 1],
    ["flips", 60],
    ["kills", 1],
    ["mcp", 20],
    ["models", 8],
    ["numbers", 7],
    ["ranks", 1],
    ["served", 1],
    ["served-crashes", 2],
    ["server", 8],
  ])(
    "%s fails nowhere",
    async (name, runs) => {
      const { stdout, status } = await torture(name, "--runs", String(runs), "--seed", "1");
      expect(stdout).toContain(`| ${name} | ${runs} | 0 |`);
      expect(status).toBe(0);
    },
    600_000,
  );

  test("fuzz fails nowhere", async ({ skip }) => {
    if (!fuzzers) skip("no fuzzers: `node scripts/build-native.mjs --fuzz` builds them, with clang");
    const { stdout, status } = await torture("fuzz", "--runs", "8", "--seed", "1");
    expect(stdout).toContain("| fuzz | 8 | 0 |");
    expect(status).toBe(0);
  }, 600_000);
});
