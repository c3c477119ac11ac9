/**
 * pass^k: the probability that k trials on the same task all succeed (Yao et al., "tau-bench",
 * 2024, section 4). pass^1 is the success rate; a slow decrease with k means a reliable policy.
 */

import { checkInteger } from "../base/validation.ts";
import { type Interval, shareInterval } from "./intervals.ts";

/** Number of trials on one task, and of those that succeeded. */
export interface TaskTrials {
  successes: number;
  trials: number;
}

/**
 * The mean over tasks of C(successes, k) / C(trials, k), an unbiased estimate, with a 95 % interval
 * of a share with one value per task, because trials on one task are not independent. Tasks with
 * fewer than k trials are left out; if none remain, the estimate is NaN.
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

/** C(successes, k) / C(trials, k), as the probability to draw k successes in a row. */
function shareOfSubsets({ successes, trials }: TaskTrials, k: number): number {
  let share = 1;
  for (let drawn = 0; drawn < k && share > 0; drawn++) share *= (successes - drawn) / (trials - drawn);
  return share;
}
