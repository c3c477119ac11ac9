/** The running processes of this machine, from /proc on Linux and from ps and sysctl on macOS. */

import { readFileSync, readlinkSync } from "node:fs";
import { type Platform, type Run, runProgram, textOf, thisPlatform } from "./platform.ts";

export interface ProcessTable {
  /** Id of the machine's boot. */
  bootId(): string;
  /** The namespace that process ids belong to: containers have their own. */
  namespace(): string;
  /**
   * The start of a process, comparable within a boot; undefined if it does not run. A zombie does
   * not run.
   */
  startOf(pid: number): string | undefined;
}

/** From /proc. */
export const linuxProcesses: ProcessTable = {
  bootId: () => readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim(),
  namespace: () => readlinkSync("/proc/self/ns/pid"),
  startOf(pid) {
    const status = textOf(`/proc/${pid}/stat`);
    if (status === undefined) return undefined;
    // The name, in parentheses, may contain anything.
    const fields = status.slice(status.lastIndexOf(")") + 2).split(" ");
    return fields[0] === "Z" || fields[0] === "X" ? undefined : fields[19]; // clock ticks since the boot
  },
};

/**
 * From programs of macOS, which has no namespaces. The boot's id is read once. Methods throw if a
 * program cannot be run, so that a running process is never reported as ended.
 */
export function darwinProcesses(run: Run = runProgram): ProcessTable {
  let boot: string | undefined;
  let own: string | undefined;
  const ask = (pid: number) => {
    // "S    Mon Nov 23 20:00:00 2026": the state, and the start to the second.
    const [state = "", ...start] = (run("ps", ["-o", "stat=,lstart=", "-p", String(pid)]) ?? "").split(/\s+/);
    return state === "" || state.startsWith("Z") ? undefined : start.join(" ");
  };
  return {
    bootId() {
      boot ??= run("sysctl", ["-n", "kern.bootsessionuuid"]);
      if (!boot) throw new Error("sysctl has no kern.bootsessionuuid");
      return boot;
    },
    namespace: () => "",
    startOf(pid) {
      if (pid !== process.pid) return ask(pid);
      own ??= ask(pid);
      return own;
    },
  };
}

/** The table of this machine. */
export function processTable({ os }: Platform = thisPlatform): ProcessTable {
  return os === "darwin" ? darwinProcesses() : linuxProcesses;
}
