/** The source and the native core that produced a run or a result. */

import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import type { LearnerDType } from "../base/dtype.ts";
import { version } from "../base/version.ts";
import { addonDigest, loadAddon, threadCount, variantOf } from "../native/load.ts";
import { packageRoot } from "../native/paths.ts";

export interface Source {
  version: string;
  /** Of a checkout: the commit, with "+" when tracked files differ from it. */
  commit: string | null;
}

let described: Source | undefined;

/** The source that this process runs, as it was at the first call. */
export function describeSource(): Source {
  described ??= { version, commit: isCheckout() ? commitOf() : null };
  return described;
}

function commitOf(): string | null {
  const commit = git("rev-parse", "--short", "HEAD");
  const changed = git("status", "--porcelain", "--untracked-files=no");
  return commit && (changed ? `${commit}+` : commit);
}

/** What a run's numbers depend on besides its recipe: the source, and the compiled core. */
export interface Build extends Source {
  /** First digits of the SHA-256 of the native addon; null where there is none. */
  core: string | null;
}

/** The build that trains on `device`. */
export function describeBuild(device: string): Build {
  return { ...describeSource(), core: addonDigest(variantOf(device)) ?? null };
}

const numerics = z.object({
  device: z.string(),
  dtype: z.string(),
  instructionSet: z.string(),
  threads: z.int(),
});

/** What the last digits of a run's numbers depend on besides its recipe and build. */
export type Numerics = z.infer<typeof numerics>;

/** The numerics of a training in this process. */
export function describeNumerics(device: string, dtype: LearnerDType): Numerics {
  return { device, dtype, instructionSet: loadAddon({ device }).instructionSet(), threads: threadCount() };
}

/**
 * Why a resumed run may not repeat bit for bit; undefined if it does.
 * @param noted `numerics` in run.json
 */
export function numericsWarning(noted: unknown, now: Numerics): string | undefined {
  const before = z.array(numerics.nullable()).safeParse(noted).data?.at(-1);
  if (!before) return undefined;
  const names = ["device", "dtype", "instructionSet", "threads"] as const;
  const changed = names.filter((name) => before[name] !== now[name]);
  if (changed.length === 0) return undefined;
  const list = (of: Numerics) => changed.map((name) => `${name} ${of[name]}`).join(", ");
  return (
    `The run was trained with ${list(before)}; now it is ${list(now)}: its numbers may differ in the last digit ` +
    "from those of an uninterrupted run (NLAC_THREADS sets the threads, NLAC_INSTRUCTION_SET the instruction set)."
  );
}

/** Whether nlac runs from a clone of its repository, not from a package. */
export function isCheckout(): boolean {
  return existsSync(join(packageRoot(), ".git"));
}

function git(...args: string[]): string | null {
  const { status, stdout } = spawnSync("git", args, { cwd: packageRoot(), encoding: "utf8" });
  return status === 0 ? stdout.trim() : null;
}
