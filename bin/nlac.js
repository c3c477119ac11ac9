#!/usr/bin/env node
// Starts the command line. A checkout that has not been compiled yet is compiled first, so that
// `npx nlac` works straight after `npm ci`.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

const compiled = new URL("../dist/cli/main.js", import.meta.url);
const compiler = new URL("../scripts/build.mjs", import.meta.url);

if (!existsSync(compiled) && existsSync(compiler)) {
  process.stderr.write("nlac: compiling lib/ to dist/ (once) …\n");
  const { status } = spawnSync(process.execPath, [fileURLToPath(compiler)], { stdio: ["ignore", 2, 2] });
  if (status !== 0) {
    process.stderr.write("nlac: ERR_BUILD: lib/ could not be compiled; run `npm ci`, then `npm run build`.\n");
    process.exit(1);
  }
}
const { runProgram } = await import(compiled.href);
await runProgram();
