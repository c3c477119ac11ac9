/** The grader of mathematical answers. */

import { NlacError } from "../../base/errors.ts";
import { judge } from "./judge.ts";
import { judgeWithLibrary, waiting } from "./library.ts";

/** Pairs that may wait for the thread, the one that is being judged among them. */
export const maxWaiting = 4096;

/**
 * Whether a prediction gives the gold answer.
 *
 * @param gold The right answer: bare, or a text whose last `\boxed{}` holds it.
 * @param prediction The whole answer; its last `\boxed{}` counts, or all of it if there is none.
 *
 * Takes bounded time on any two strings, and throws on none, but ERR_BUSY for more at once than may wait (4096 of those that
 * need the thread): await some of them in between. Compared are, in this order: the texts without layout;
 * exact fractions; sets, tuples, intervals, matrices, equations and inequalities by their parts; all else by its
 * values, in a thread of its own that is given up on after a second and then means no. See docs/environments/math.md.
 */
export async function gradeMath(gold: string, prediction: string): Promise<boolean> {
  const verdict = judge(gold, prediction);
  if (verdict === undefined && waiting() >= maxWaiting)
    throw new NlacError(
      "ERR_BUSY",
      `gradeMath: ${maxWaiting} answers wait to be judged. Await some of them before you ask for more.`,
    );
  return verdict ?? judgeWithLibrary(gold, prediction);
}

/** The same, however many wait: an episode asks for one verdict at a time. */
export async function gradeEpisode(gold: string, prediction: string): Promise<boolean> {
  return judge(gold, prediction) ?? judgeWithLibrary(gold, prediction);
}
