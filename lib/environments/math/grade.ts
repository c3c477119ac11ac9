/** The grader of mathematical answers. */

import { same } from "./compare.ts";
import { type Fuel, OutOfFuel } from "./evaluate.ts";
import { answerCandidates, longestAnswer } from "./extract.ts";
import { bare, type Commas, tokenize } from "./latex.ts";
import { type Node, parse } from "./parse.ts";

/** Nodes one grading may visit: milliseconds, and far more than answers need. */
const fuelOfOneGrading = 300_000;

/**
 * Whether a prediction gives the gold answer.
 *
 * @param gold The right answer: bare, or a text whose last `\boxed{}` holds it.
 * @param prediction The whole answer; its last `\boxed{}` counts, or all of it if there is none.
 *
 * Never throws, and takes bounded time on any two strings. Compared are, in this order: the texts without layout;
 * exact fractions; sets, tuples, intervals, matrices, equations and inequalities by their parts; all else by its
 * value at a few generic points (for names) in double precision.
 */
export async function gradeMath(gold: string, prediction: string): Promise<boolean> {
  return gradeMathSync(gold, prediction);
}

export function gradeMathSync(gold: string, prediction: string): boolean {
  const fuel: Fuel = { left: fuelOfOneGrading };
  try {
    const golds = answerCandidates(gold);
    const predictions = answerCandidates(prediction);
    return golds.some((right) => predictions.some((answer) => agrees(right, answer, fuel)));
  } catch (error) {
    if (error instanceof OutOfFuel || error instanceof RangeError) return false;
    throw error;
  }
}

function agrees(gold: string, answer: string, fuel: Fuel): boolean {
  if (gold.length > longestAnswer || answer.length > longestAnswer) {
    return gold.trim() === answer.trim();
  }
  const bareGold = bare(gold);
  const bareAnswer = bare(answer);
  if (bareGold === bareAnswer) return true;
  if (bareGold === "" || bareAnswer === "") return false;
  // Braces are the last thing that does not show.
  if (
    bareGold.replace(/[{}]/g, "") === bareAnswer.replace(/[{}]/g, "") &&
    !/\\frac|\\sqrt|[\^_]/.test(bareGold)
  ) {
    if (!/\\[{}]/.test(bareGold + bareAnswer)) return true;
  }
  const readings = (text: string): Node[] => {
    const kinds: Commas[] = /\d,\d/.test(text.replace(/\\!|\s/g, ""))
      ? ["list", "thousands", "decimal"]
      : ["list"];
    return kinds.flatMap((commas) => {
      const tokens = tokenize(text, commas);
      const node = tokens === undefined ? undefined : parse(tokens);
      return node === undefined ? [] : [node];
    });
  };
  const goldReadings = readings(gold);
  if (goldReadings.length === 0) return false;
  const answerReadings = readings(answer);
  return goldReadings.some((a) => answerReadings.some((b) => same(a, b, fuel)));
}
