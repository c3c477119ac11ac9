/** The grader of mathematical answers. */

import { judge } from "./judge.ts";
import { judgeWithLibrary } from "./library.ts";

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
  return judge(gold, prediction) ?? judgeWithLibrary(gold, prediction);
}
