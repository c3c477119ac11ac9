/**
 * build.json: the sources of a prebuilt addon, and its requirements. scripts/prebuild.mjs writes
 * it.
 */

import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { version } from "../base/version.ts";
import { TORCH_VERSION } from "./libtorch.ts";
import { isOlder, type Machine, thisMachine } from "./system.ts";

const buildSchema = z.object({
  nlac: z.string(),
  torch: z.string(),
  variant: z.enum(["cpu", "cuda"]),
  nodeApi: z.int(),
  /** The newest symbol version of each family: { GLIBC: "2.28" }. */
  symbols: z.record(z.string(), z.string()),
  /** SHA-256 of each file. */
  files: z.record(z.string(), z.string()),
});

/**
 * Why a prebuilt addon cannot be used on this machine; undefined if nothing is wrong, or if the
 * directory has no build.json, as one that was compiled here.
 */
export function whyUnfit(directory: string, machine: Machine = thisMachine()): string | undefined {
  const file = join(directory, "build.json");
  if (!existsSync(file)) return undefined;
  const build = parse(readFileSync(file, "utf8"));
  if (build === undefined) return "build.json is damaged";
  for (const [name, expected] of Object.entries(build.files)) {
    const path = join(directory, name);
    if (!existsSync(path)) return `${name} is missing`;
    if (sha256(path) !== expected) return `${name} is damaged: its SHA-256 differs from build.json`;
  }
  if (build.nlac !== version) return `it is of nlac ${build.nlac}, not ${version}`;
  if (build.torch !== TORCH_VERSION) return `it was compiled for torch ${build.torch}, not ${TORCH_VERSION}`;
  if (build.nodeApi > machine.nodeApi)
    return `it needs Node-API ${build.nodeApi}; this Node has ${machine.nodeApi}`;
  const needed = build.symbols.GLIBC;
  if (needed !== undefined && isOlder(machine.glibc ?? "0", needed))
    return `it needs glibc ${needed}; this system has ${machine.glibc ?? "none"}`;
  return undefined;
}

function sha256(path: string): string {
  return createHash("sha256").update(readFileSync(path)).digest("hex");
}

function parse(text: string): z.infer<typeof buildSchema> | undefined {
  try {
    return buildSchema.parse(JSON.parse(text));
  } catch {
    return undefined;
  }
}
