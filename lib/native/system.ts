/** The operating system that the addon and libtorch load on. */

import { release } from "node:os";
import { type Platform, thisPlatform } from "../base/platform.ts";

export interface Machine extends Platform {
  nodeApi: number;
  /** Undefined if this is not a glibc system. */
  glibc: string | undefined;
  /** Of the kernel: Darwin 20 is macOS 11. */
  release: string;
}

/** This process's C library, kernel and Node-API. */
export function thisMachine(): Machine {
  const report = process.report?.getReport() as { header?: { glibcVersionRuntime?: string } } | undefined;
  const glibc = report?.header?.glibcVersionRuntime;
  return { ...thisPlatform, nodeApi: Number(process.versions.napi), glibc, release: release() };
}

/** Why torch's wheels do not load on this system; undefined if they do. */
export function whyUnsupported({ os, arch, glibc, release }: Machine = thisMachine()): string | undefined {
  if (os === "darwin") {
    if (arch !== "arm64") return "libtorch needs an Apple processor";
    return isOlder(release, "20") ? "libtorch needs macOS 11 or later" : undefined;
  }
  if (os !== "linux") return "libtorch needs Linux, macOS or Windows with WSL2";
  return isOlder(glibc ?? "0", "2.28") ? "libtorch needs Linux with glibc 2.28 or later" : undefined;
}

/** In words: "linux-x64, glibc 2.36". */
export function describeMachine({ os, arch, glibc, release }: Machine): string {
  if (os === "darwin") return `${os}-${arch}, Darwin ${release}`;
  const wsl = /microsoft/i.test(release) ? ", WSL" : "";
  return `${os}-${arch}, ${glibc ? `glibc ${glibc}` : "no glibc"}${wsl}`;
}

/**
 * Whether version `a` is older than `b`; missing parts are 0, but "2.28" is older than "2.28.0".
 */
export function isOlder(a: string, b: string): boolean {
  const [x, y] = [a, b].map((text) => text.split(".").map(Number));
  const at = x!.findIndex((part, i) => part !== (y![i] ?? 0));
  return at < 0 ? x!.length < y!.length : x![at]! < (y![at] ?? 0);
}
