/**
 * The differences between Linux and macOS: names of files, and facts that are read from /proc on
 * Linux and from the output of programs on macOS. WSL2 is Linux. Functions take the platform as a
 * parameter, so that the code for each platform is tested on every system.
 */

import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";

export interface Platform {
  /** As `process.platform`. */
  os: string;
  /** As `process.arch`. */
  arch: string;
}

export const thisPlatform: Platform = { os: process.platform, arch: process.arch };

/** For example "linux-x64", as in the names of prebuilt binaries. */
export function platformName({ os, arch }: Platform = thisPlatform): string {
  return `${os}-${arch}`;
}

/** The file name of a shared library: "c10" is libc10.so or libc10.dylib. */
export function libraryFile(name: string, { os }: Platform): string {
  return `lib${name}.${os === "darwin" ? "dylib" : "so"}`;
}

/**
 * Runs a program. Returns its output without white space at the ends, undefined if it exits with a
 * failure. Throws Node's error if it cannot be run.
 */
export type Run = (program: string, args: readonly string[]) => string | undefined;

export const runProgram: Run = (program, args) => {
  // Times and numbers in the same form everywhere.
  const env = { ...process.env, LC_ALL: "C", TZ: "UTC" };
  const { error, status, stdout } = spawnSync(program, args, { encoding: "utf8", env, timeout: 10_000 });
  if (error) throw error;
  return status === 0 ? stdout.trim() : undefined;
};

function attempt<T>(body: () => T): T | undefined {
  try {
    return body();
  } catch {
    return undefined;
  }
}

/** The text of a file; undefined if it cannot be read. */
export const textOf = (path: string): string | undefined => attempt(() => readFileSync(path, "utf8"));

/**
 * Physical cores of the machine, on Apple's processors the fast ones; Infinity if unknown.
 *
 * @param cpuinfo of Linux; undefined: the system is asked
 */
export function physicalCores(
  { os }: Platform = thisPlatform,
  { cpuinfo = textOf("/proc/cpuinfo"), run = runProgram }: { cpuinfo?: string | undefined; run?: Run } = {},
): number {
  if (os === "darwin") {
    const names = ["hw.perflevel0.physicalcpu", "hw.physicalcpu"];
    const counts = names.map((name) => Number(attempt(() => run("sysctl", ["-n", name]))));
    return counts.find((count) => count > 0) ?? Number.POSITIVE_INFINITY;
  }
  const cores = new Set<string>();
  for (const block of (cpuinfo ?? "").split("\n\n")) {
    const core = /^core id\s*:\s*(\d+)/m.exec(block)?.[1];
    if (core !== undefined) cores.add(`${/^physical id\s*:\s*(\d+)/m.exec(block)?.[1]}:${core}`);
  }
  return cores.size || Number.POSITIVE_INFINITY;
}

/**
 * The instruction sets of the processor by Linux's names, such as "avx2"; empty if unknown.
 *
 * @param cpuinfo of Linux
 */
export function cpuFeatures(cpuinfo = textOf("/proc/cpuinfo") ?? ""): Set<string> {
  const line = /^(?:flags|Features)\s*:\s*(.*)$/m.exec(cpuinfo)?.[1] ?? "";
  return new Set(line.split(/\s+/).filter((word) => word !== ""));
}

/**
 * Peak resident memory of a process, bytes; on macOS its resident memory now. Null if unknown or it
 * has ended.
 */
export function residentMemory(
  pid: number,
  { os }: Platform = thisPlatform,
  run: Run = runProgram,
): number | null {
  const kilobytes =
    os === "darwin"
      ? attempt(() => run("ps", ["-o", "rss=", "-p", String(pid)]))
      : /^VmHWM:\s*(\d+) kB/m.exec(textOf(`/proc/${pid}/status`) ?? "")?.[1];
  return kilobytes === undefined || kilobytes === "" ? null : Number(kilobytes) * 1024;
}
