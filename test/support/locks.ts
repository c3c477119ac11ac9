/** Lock files as a process writes them. */

import { randomUUID } from "node:crypto";
import { identify } from "../../lib/base/processes.ts";

/** The lock of process `pid`, or of one that had this id and has ended. */
export function lockOf(
  pid: number,
  { ended = false, ...other }: { ended?: boolean; host?: string; boot?: string; namespace?: string } = {},
): string {
  const holder = { ...identify(pid), ...(ended && { started: "1" }), ...other };
  return `${JSON.stringify({ ...holder, token: randomUUID() })}\n`;
}
