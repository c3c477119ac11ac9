/**
 * Peak memory of a part of a process, as in bench/peers/common.py. CPU: the peak of resident memory
 * after a reset, minus the resident memory before. GPU: the growth of the memory in use according
 * to the driver, because libtorch does not release memory.
 */

import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { variantOf } from "../native/load.ts";

/** Starts a measurement. The returned function gives the peak in bytes; null if unknown. */
export function measurePeakMemory(device: string): () => number | null {
  // Collect the arrays of the inputs now: freeing them later would hide as much of the peak.
  globalThis.gc?.();
  if (variantOf(device) === "cuda") {
    const before = usedOnDevice(device);
    return () => difference(usedOnDevice(device), before);
  }
  const before = resetPeak() ? memoryStatus() : undefined;
  return () => {
    if (before === undefined) return null;
    const after = memoryStatus();
    // Pages of files are code that ran for the first time.
    const code = Math.max(0, after.RssFile - before.RssFile);
    return Math.max(0, after.VmHWM - before.VmRSS - code);
  };
}

function resetPeak(): boolean {
  try {
    writeFileSync("/proc/self/clear_refs", "5");
    return true;
  } catch {
    return false; // not available in some containers
  }
}

function memoryStatus(): Record<"VmRSS" | "VmHWM" | "RssFile", number> {
  const text = readFileSync("/proc/self/status", "utf8");
  const bytes = (name: string) =>
    Number(new RegExp(`^${name}:\\s*(\\d+) kB`, "m").exec(text)?.[1] ?? "0") * 1024;
  return { VmRSS: bytes("VmRSS"), VmHWM: bytes("VmHWM"), RssFile: bytes("RssFile") };
}

function usedOnDevice(device: string): number | null {
  const id = device.split(":")[1] ?? "0";
  const query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits"];
  const { status, stdout } = spawnSync("nvidia-smi", [`--id=${id}`, ...query], { encoding: "utf8" });
  return status === 0 ? Number(stdout) * 2 ** 20 : null;
}

function difference(after: number | null, before: number | null): number | null {
  return after === null || before === null ? null : Math.max(0, after - before);
}
