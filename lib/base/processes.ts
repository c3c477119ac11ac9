/** Which process holds something, in a form that another process can check. */

import { readFileSync, readlinkSync } from "node:fs";
import { hostname } from "node:os";
import { z } from "zod";

/** Identifies a process beyond its id, which is reused. */
export const processIdentity = z.strictObject({
  host: z.string(),
  /** Id of the machine's boot. */
  boot: z.string(),
  /** The namespace that the process id belongs to: containers have their own. */
  namespace: z.string(),
  pid: z.int().min(1),
  /** Start of the process in clock ticks since the boot. */
  started: z.string(),
});

export type ProcessIdentity = z.infer<typeof processIdentity>;

/** A process of this machine, by default this one. */
export function identify(pid: number = process.pid): ProcessIdentity {
  return { host: hostname(), boot: bootId(), namespace: ownNamespace(), pid, started: startOf(pid) ?? "" };
}

/**
 * Whether a process is known to have ended: it ran before this machine's last boot, or its id is
 * free or belongs to another process. False for a process of another machine or container.
 */
export function hasEnded({ host, boot, namespace, pid, started }: ProcessIdentity): boolean {
  if (boot !== bootId()) return host === hostname();
  if (namespace !== ownNamespace()) return false;
  return startOf(pid) !== started;
}

/**
 * Whether a process runs or ran on this machine in another container, whose processes are not seen.
 */
export function isInOtherContainer({ boot, namespace }: ProcessIdentity): boolean {
  return boot === bootId() && namespace !== ownNamespace();
}

/** In words: "process 12", with the container or the host if it is another one. */
export function describeProcess(identity: ProcessIdentity): string {
  const { host, pid } = identity;
  if (isInOtherContainer(identity)) return `process ${pid} of another container`;
  return `process ${pid}${host === hostname() ? "" : ` on ${host}`}`;
}

function bootId(): string {
  return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
}

function ownNamespace(): string {
  return readlinkSync("/proc/self/ns/pid");
}

/** Undefined if no such process runs. A zombie does not run. */
function startOf(pid: number): string | undefined {
  let status: string;
  try {
    status = readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return undefined;
  }
  // The name, in parentheses, may contain anything.
  const fields = status.slice(status.lastIndexOf(")") + 2).split(" ");
  return fields[0] === "Z" || fields[0] === "X" ? undefined : fields[19];
}
