/** Which source and which native core produced a run or a result. */

import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { version } from "../base/version.ts";
import { addonDigest, variantOf } from "../native/load.ts";
import { packageRoot } from "../native/paths.ts";

export interface Source {
  version: string;
  /** Of a checkout: the commit, with "+" when tracked files differ from it. */
  commit: string | null;
}

export function describeSource(): Source {
  if (!isCheckout()) return { version, commit: null };
  const commit = git("rev-parse", "--short", "HEAD");
  const changed = git("status", "--porcelain", "--untracked-files=no");
  return { version, commit: commit && (changed ? `${commit}+` : commit) };
}

/**
 * What a run's numbers depend on beside its recipe: the source, and the core as it was compiled.
 */
export interface Build extends Source {
  /** First digits of the SHA-256 of the native addon; null where there is none. */
  core: string | null;
}

/** The build that a training on `device` runs. */
export function describeBuild(device: string): Build {
  return { ...describeSource(), core: addonDigest(variantOf(device)) ?? null };
}

/** Whether nlac runs from a clone of its repository, not from a package. */
export function isCheckout(): boolean {
  return existsSync(join(packageRoot(), ".git"));
}

function git(...args: string[]): string | null {
  const { status, stdout } = spawnSync("git", args, { cwd: packageRoot(), encoding: "utf8" });
  return status === 0 ? stdout.trim() : null;
}
