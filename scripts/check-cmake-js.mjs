#!/usr/bin/env node
// Checks that cmake-js makes the same addon as scripts/build-native.mjs: every source is compiled
// by the same command, apart from the definition that cmake-js adds. Then builds the loader, the
// smaller addon, with it. Needs the CPU build.
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { importLib } from "./build-native.mjs";

const root = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");

/** The compiler's command of each object of a build directory, without that directory's name. */
function commands(directory) {
  const entries = JSON.parse(readFileSync(join(directory, "compile_commands.json"), "utf8"));
  const plain = entries.map(({ command }) =>
    command.replaceAll(directory, "BUILD").replace(" -DBUILDING_NODE_EXTENSION", "").replace(/\s+/g, " "),
  );
  return new Map(plain.map((command) => [/ -o (\S+)/.exec(command)[1], command]));
}

const { requireLibtorch } = await importLib("native/libtorch");
const libtorch = requireLibtorch({ variant: "cpu", headers: true }).torch;
const directory = join(root, "build", "cmake-js");
rmSync(directory, { recursive: true, force: true });
const options = ["--directory", root, "--out", directory, `--CDNLAC_LIBTORCH=${libtorch}`];
const cmakeJs = (command) =>
  execFileSync(
    join(root, "node_modules", ".bin", "cmake-js"),
    [command, ...options, "--target", "nlac_loader"],
    {
      cwd: root,
      stdio: ["ignore", "ignore", "inherit"],
    },
  );
cmakeJs("configure");

const expected = commands(join(root, "build", "cpu"));
const actual = commands(directory);
// The CPU build also has the tests, if they were requested.
const differing = [...actual].filter(([object, command]) => expected.get(object) !== command);
for (const [object, command] of differing)
  console.error(`${object}\n  cmake-js:     ${command}\n  build-native: ${expected.get(object)}`);

cmakeJs("compile");
const loader = join(directory, "nlac_loader.node");
if (existsSync(loader)) process.dlopen({ exports: {} }, loader);
else throw new Error(`cmake-js did not make ${loader}`);
console.log(`${actual.size} objects, ${differing.length} compiled differently`);
rmSync(directory, { recursive: true, force: true });
process.exitCode = differing.length > 0 || actual.size === 0 ? 1 : 0;
