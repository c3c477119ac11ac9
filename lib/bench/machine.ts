/** What a result was measured on, and by which source. */

import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { availableParallelism, cpus, loadavg, release, totalmem } from "node:os";
import { join } from "node:path";
import { variantOf } from "../native/load.ts";
import { packageRoot } from "../native/paths.ts";
import { version } from "../version.ts";

export interface Machine {
  cpu: string;
  cores: number;
  /** Bytes. */
  memory: number;
  gpu: string | null;
  kernel: string;
  node: string;
  /** Processes that wanted to run in the last minute, on average, before the benchmark began. */
  load: number;
}

export interface Source {
  version: string;
  /** Of a checkout: the commit, with "+" when tracked files differ from it. */
  commit: string | null;
}

export function describeMachine(device: string): Machine {
  return {
    cpu: cpus()[0]?.model.trim() ?? "unknown CPU",
    cores: availableParallelism(),
    memory: totalmem(),
    gpu: variantOf(device) === "cuda" ? gpuName(device) : null,
    kernel: `${process.platform} ${release()}`,
    node: process.versions.node,
    load: loadavg()[0]!,
  };
}

/** Whether what ran before the benchmark left it the machine. */
export function isQuiet({ load, cores }: Machine): boolean {
  return load <= cores / 4;
}

export function describeSource(): Source {
  if (!isCheckout()) return { version, commit: null };
  const commit = git("rev-parse", "--short", "HEAD");
  const changed = git("status", "--porcelain", "--untracked-files=no");
  return { version, commit: commit && (changed ? `${commit}+` : commit) };
}

/** Whether nlac runs from a clone of its repository, not from a package. */
export function isCheckout(): boolean {
  return existsSync(join(packageRoot(), ".git"));
}

function git(...args: string[]): string | null {
  const { status, stdout } = spawnSync("git", args, { cwd: packageRoot(), encoding: "utf8" });
  return status === 0 ? stdout.trim() : null;
}

function gpuName(device: string): string | null {
  const id = device.split(":")[1] ?? "0";
  const query = [`--id=${id}`, "--query-gpu=name", "--format=csv,noheader"];
  const { status, stdout } = spawnSync("nvidia-smi", query, { encoding: "utf8" });
  return status === 0 ? stdout.trim() : null;
}
