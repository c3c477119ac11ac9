#!/usr/bin/env node
// prebuildify runs this in place of node-gyp, whose `rebuild` deletes all of build/. The variant is
// in NLAC_PREBUILD: "cpu" or "cuda".
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const script = fileURLToPath(new URL("build-native.mjs", import.meta.url));
const cuda = process.env.NLAC_PREBUILD === "cuda" ? ["--cuda"] : [];
const { status } = spawnSync(
  process.execPath,
  [script, ...cuda, "--older-systems", "--copy-to", "build/Release"],
  {
    stdio: "inherit",
  },
);
process.exitCode = status ?? 1;
