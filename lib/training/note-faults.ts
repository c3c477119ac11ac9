/** Shows why episodes failed. Training continues with the others. */

import { getOrAdd } from "../base/get-or-add.ts";
import type { Progress } from "../display/progress.ts";
import type { Trajectory } from "../episodes/trajectory.ts";

/** What was shown of each run. */
const shownTo = new WeakMap<Progress, Set<string>>();
/** Most different faults that are shown of a run. */
const maxShown = 5;

/** Notes the faults of `trajectories`, each message once. */
export function noteFaults(progress: Progress, trajectories: readonly Trajectory[], phase: string): void {
  const shown = getOrAdd(shownTo, progress, () => new Set());
  for (const { task, fault } of trajectories) {
    if (fault === undefined || shown.size === maxShown) continue;
    const reason = `${fault.code}: ${fault.message}`;
    if (shown.has(reason)) continue;
    shown.add(reason);
    progress.note?.(`${phase}: an episode on the task ${JSON.stringify(task)} failed with ${reason}`);
  }
}
