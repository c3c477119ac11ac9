/** Identifies the holder of a resource, in a form that another process can check. */

import { hostname } from "node:os";
import { z } from "zod";
import { processTable } from "./process-table.ts";

/** Identifies a process. Its id alone would not, because ids are reused. */
export const processIdentity = z.strictObject({
  host: z.string(),
  /** Id of the machine's boot. */
  boot: z.string(),
  /** The namespace that the process id belongs to: containers have their own. */
  namespace: z.string(),
  pid: z.int().min(1),
  /** Start of the process, as `ProcessTable` has it. */
  started: z.string(),
});

export type ProcessIdentity = z.infer<typeof processIdentity>;

const table = processTable();

let own: ProcessIdentity | undefined;

/** A process of this machine, by default this one. */
export function identify(pid: number = process.pid): ProcessIdentity {
  if (pid !== process.pid) return identityOf(pid);
  own ??= identityOf(pid);
  return own;
}

function identityOf(pid: number): ProcessIdentity {
  const started = table.startOf(pid) ?? "";
  return { host: hostname(), boot: table.bootId(), namespace: table.namespace(), pid, started };
}

/**
 * Whether a process is known to have ended: it ran before this machine's last boot, or its id is
 * free or belongs to another process. False for a process of another machine or container.
 */
export function hasEnded({ host, boot, namespace, pid, started }: ProcessIdentity): boolean {
  if (boot !== table.bootId()) return host === hostname();
  if (namespace !== table.namespace()) return false;
  return table.startOf(pid) !== started;
}

/**
 * Whether a process runs or ran on this machine in another container, whose processes are not seen.
 */
export function isInOtherContainer({ boot, namespace }: ProcessIdentity): boolean {
  return boot === table.bootId() && namespace !== table.namespace();
}

/** In words: "process 12", with the container or the host if it is another one. */
export function describeProcess(identity: ProcessIdentity): string {
  const { host, pid } = identity;
  if (isInOtherContainer(identity)) return `process ${pid} of another container`;
  return `process ${pid}${host === hostname() ? "" : ` on ${host}`}`;
}
