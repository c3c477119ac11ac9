#!/usr/bin/env node
// Formats native/ with clang-format; `--check` only lists files that differ. A fixed version is
// installed from PyPI into a virtual environment in nlac's cache.
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const VERSION = "23.1.5";
const root = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");

function run(program, args) {
  const { status, error } = spawnSync(program, args, { cwd: root, stdio: "inherit" });
  if (error) throw error;
  return status;
}

function mustRun(program, args) {
  const status = run(program, args);
  if (status !== 0) throw new Error(`${[program, ...args].join(" ")}: exit ${status}`);
}

/** The path of clang-format. Installs it if necessary. */
function clangFormat() {
  const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "nlac");
  const directory = join(cache, `clang-format-${VERSION}`);
  const program = join(directory, "bin", "clang-format");
  if (!existsSync(program)) {
    mustRun("python3", ["-m", "venv", directory]);
    const pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    mustRun(join(directory, "bin", "python"), [...pip, `clang-format==${VERSION}`]);
  }
  return program;
}

const files = readdirSync(join(root, "native"), { recursive: true, encoding: "utf8" })
  .filter((name) => /\.(h|cc|cu|inc)$/.test(name))
  .map((name) => join("native", name));
const options = process.argv.includes("--check") ? ["--dry-run", "-Werror"] : ["-i"];
process.exitCode = run(clangFormat(), [...options, ...files]);
