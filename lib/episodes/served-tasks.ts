/** Which task a served episode is an attempt at, by the names of its lease and its group. */

import { randomUUID } from "node:crypto";
import type { EpisodeRecord } from "./records.ts";

const leased = /^task-(\d+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** A new name for an episode or a group of task number `id`. */
export const leasedName = (id: number) => `task-${id}-${randomUUID()}`;

/** Whether a group was named by a lease. No other group of a run has the same name. */
export const isLeasedGroup = (name: string) => leased.test(name);

/**
 * A name for the task that a served episode worked on: that of a lease, its own or its parent's, or
 * else of its group. Undefined if neither is known: the record's `task` is then the client's name of
 * this episode alone.
 */
export function servedTask({
  task,
  group,
  parent,
  split,
}: Pick<EpisodeRecord, "task" | "group" | "parent" | "split">): string | undefined {
  const number = [task, group, parent].map((name) => leased.exec(name ?? "")?.[1]).find(Boolean);
  if (number === undefined) return group;
  // Training and held-out tasks are numbered separately.
  return split === "test" ? `held-out task ${number}` : `task ${number}`;
}
