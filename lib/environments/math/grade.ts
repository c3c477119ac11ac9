/** The grader of mathematical answers. */

import { NlacError } from "../../base/errors.ts";
import { judge } from "./judge.ts";
import { judgeWithLibrary, waiting } from "./library.ts";

/** Most pairs queued for the thread, including the current one. */
export const maxWaiting = 4096;

/**
 * Whether a prediction matches the gold answer. Takes bounded time on any two strings.
 *
 * @param gold the right answer: bare, or a text whose last `\boxed{}` contains it
 * @param prediction the whole answer; its last `\boxed{}` counts, or all of it if there is none
 * @throws NlacError ERR_BUSY, and nothing else, if more than 4,096 pairs that need the thread are
 *   queued: await some of them first
 *
 * Compares in this order: the texts without layout; exact fractions; sets, tuples, intervals,
 * matrices, equations and inequalities by their parts; everything else by its values, in a separate
 * thread with a timeout of one second, after which the result is false. See
 * docs/environments/math.md.
 */
export async function gradeMath(gold: string, prediction: string): Promise<boolean> {
  const verdict = judge(gold, prediction);
  if (verdict === undefined && waiting() >= maxWaiting)
    throw new NlacError(
      "ERR_BUSY",
      `gradeMath: ${maxWaiting} answers are queued. Await some of them before you grade more.`,
    );
  return verdict ?? judgeWithLibrary(gold, prediction);
}

/** Same without the limit of the queue, since an episode requests only one verdict at a time. */
export async function gradeEpisode(gold: string, prediction: string): Promise<boolean> {
  return judge(gold, prediction) ?? judgeWithLibrary(gold, prediction);
}
