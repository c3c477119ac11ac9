#!/usr/bin/env node
// prebuildify runs this in place of node-gyp, whose `rebuild` deletes all of build/. The variant is
// in NLAC_PREBUILD: "cpu" or "cuda"; the processor in NLAC_PREBUILD_ARCH.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const script = fileURLToPath(new URL("build-native.mjs", import.meta.url));
const cuda = process.env.NLAC_PREBUILD === "cuda" ? ["--cuda"] : [];
const arch = process.env.NLAC_PREBUILD_ARCH ? ["--arch", process.env.NLAC_PREBUILD_ARCH] : [];
const { status } = spawnSync(
  process.execPath,
  [script, ...cuda, ...arch, "--older-systems", "--copy-to", "build/Release"],
  {
    stdio: "inherit",
  },
);
process.exitCode = status ?? 1;
