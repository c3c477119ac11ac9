/**
 * pass^k: how likely a policy is to succeed in each of k trials on the same task (Yao et al., "tau-bench", 2024,
 * section 4). pass^1 is the success rate; how it falls with k tells how far the policy can be relied on.
 */

import { checkInteger } from "../base/validation.ts";
import { type Interval, shareInterval } from "./intervals.ts";

/** How often a policy was tried on one task, and how often it succeeded. */
export interface TaskTrials {
  successes: number;
  trials: number;
}

/**
 * The mean over tasks of C(successes, k) / C(trials, k), which is unbiased: the share of all ways to choose k of the
 * task's trials where each of them succeeded. Its 95 % interval is that of a share with one value a task, since trials on
 * one task are not independent of each other.
 *
 * A task with fewer than k trials says nothing about k and is left out; where none is left, the estimate is NaN.
 *
 * @throws ERR_VALUE unless `k` is an integer of at least 1 and each task has 0 ≤ successes ≤ trials
 */
export function passHatK(tasks: readonly TaskTrials[], k: number): Interval {
  checkInteger(k, "k", 1);
  for (const [i, { successes, trials }] of tasks.entries()) {
    checkInteger(trials, `tasks[${i}].trials`, 0);
    checkInteger(successes, `tasks[${i}].successes`, 0, trials);
  }
  const tried = tasks.filter(({ trials }) => trials >= k);
  return shareInterval(
    tried.map((task) => [shareOfSubsets(task, k)]),
    tried.reduce((sum, { trials }) => sum + trials, 0),
  );
}

/** C(successes, k) / C(trials, k), as the chance to draw k successes one after the other. */
function shareOfSubsets({ successes, trials }: TaskTrials, k: number): number {
  let share = 1;
  for (let drawn = 0; drawn < k && share > 0; drawn++) share *= (successes - drawn) / (trials - drawn);
  return share;
}
