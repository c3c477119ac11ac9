/** Parts of a form that several requests share. */

import type { ActionFormat } from "./policy.ts";

export const optimalityForm = [
  "Optimality:",
  '<"Yes" or "No". After a "No", one sentence on how to improve the action, argued from that future.>',
].join("\n");

export const actionFreeNotes = [
  "Notes:",
  "1. Tools cannot be called here; a call would have **no effect**.",
  '2. For the best possible action write just "Yes" after "Optimality:", without a reason.',
  "3. Stop after the judgement.",
].join("\n");

/** The form of a verdict on a solution. Only a boxed solution can fail for lack of a box. */
export function correctnessForm(format: ActionFormat): string {
  const verdict = '<"Yes" or "No". After a "No", say where the solution goes wrong.';
  const boxed = " A right value counts as wrong when it is not\ngiven in the form \\boxed{answer}.";
  return `Correctness:\n${verdict}${format === "solution" ? boxed : ""}>`;
}
