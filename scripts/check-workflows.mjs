#!/usr/bin/env node
// Checks .github/workflows with actionlint (syntax, expressions) and zizmor (security). Pinned
// versions are fetched with Go and with Python. A check whose tool cannot be installed is skipped
// with a message; with GITHUB_ACTIONS set it fails instead.
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7";
const ZIZMOR = "1.32.0";
const root = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");
const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "nlac");

/** Runs a program in the checkout; throws if it cannot be run or fails. */
function run(program, args, env = {}) {
  const { status, error } = spawnSync(program, args, {
    cwd: root,
    env: { ...process.env, ...env },
    stdio: "inherit",
  });
  if (error) throw error;
  if (status !== 0) throw new Error(`${program} ${args[0]}: exit ${status}`);
}

/** The path of actionlint. Builds it once. */
function actionlint() {
  const directory = join(cache, `actionlint-${ACTIONLINT.split("@")[1]}`);
  const program = join(directory, "actionlint");
  if (!existsSync(program)) run("go", ["install", ACTIONLINT], { GOBIN: directory });
  return program;
}

/** The path of zizmor. Installs it once, into a virtual environment. */
function zizmor() {
  const directory = join(cache, `zizmor-${ZIZMOR}`);
  const program = join(directory, "bin", "zizmor");
  if (!existsSync(program)) {
    run("python3", ["-m", "venv", directory]);
    run(join(directory, "bin", "pip"), [
      "install",
      "--quiet",
      "--disable-pip-version-check",
      `zizmor==${ZIZMOR}`,
    ]);
  }
  return program;
}

const folder = join(".github", "workflows");
const files = readdirSync(join(root, folder)).map((name) => join(folder, name));
const checks = [
  { name: "actionlint", find: actionlint, args: files },
  { name: "zizmor", find: zizmor, args: ["--offline", "--no-progress", ...files] },
];
let failed = 0;
for (const { name, find, args } of checks) {
  let program;
  try {
    program = find();
  } catch (error) {
    if (process.env.GITHUB_ACTIONS) failed++;
    console.log(
      `${process.env.GITHUB_ACTIONS ? "FAILED" : "SKIPPED"}: ${name} is not available: ${error.message}`,
    );
    continue;
  }
  try {
    run(program, args);
    console.log(`${name}: no findings`);
  } catch (error) {
    failed++;
    console.error(error.message);
  }
}
process.exitCode = failed > 0 ? 1 : 0;
