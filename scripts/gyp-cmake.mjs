#!/usr/bin/env node
// prebuildify runs this in place of node-gyp, whose `rebuild` deletes all of build/. The variant is
// in NLAC_PREBUILD: "cpu" or "cuda"; the processor in NLAC_PREBUILD_ARCH; the number of compiler
// processes in NLAC_PREBUILD_JOBS.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const script = fileURLToPath(new URL("build-native.mjs", import.meta.url));
const { NLAC_PREBUILD: variant, NLAC_PREBUILD_ARCH: arch, NLAC_PREBUILD_JOBS: jobs } = process.env;
const argv = [
  ...["--older-systems", "--copy-to", "build/Release"],
  // Not the tests, which an earlier build in the same directory may have configured.
  ...["--target", "nlac_loader", "--target", "nlac_addon"],
  ...(variant === "cuda" ? ["--cuda"] : []),
  ...(arch ? ["--arch", arch] : []),
  ...(jobs ? ["--jobs", jobs] : []),
];
const { status } = spawnSync(process.execPath, [script, ...argv], { stdio: "inherit" });
process.exitCode = status ?? 1;
