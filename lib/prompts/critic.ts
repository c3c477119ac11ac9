/**
 * Prompts of the critic: successor and evaluator in one generation (k = 1). It sees (s, a) and
 * nothing after. In single-step tasks it judges a solution instead of predicting a future.
 */

import { correctnessForm } from "./forms.ts";
import { type Parsed, parseVerdict, sections, type Verdict } from "./parsing.ts";
import type { ActionFormat } from "./policy.ts";

export interface Critique extends Verdict {
  /** Absent for single-step tasks. */
  future?: string;
}

/** @param format form of a solution, for single-step tasks */
export function criticRequest(singleStep: boolean, format: ActionFormat = "solution"): string {
  if (singleStep) {
    return [
      "Check the solution you have just written and report the result in exactly this form:",
      "",
      correctnessForm(format),
    ].join("\n");
  }
  return [
    "Judge your last action: first foresee one way in which things may go on, then say whether the action was the",
    "best one, and if it was not, what would have been better. Answer in exactly this form:",
    "",
    "Future:",
    "<One course of events from here up to success or failure at the whole task, in a few short sentences.>",
    "Optimality:",
    '<"Yes" or "No". After a "No", one sentence on how to improve the action, argued from the future you foresee.>',
    "",
    "Stop after the judgement.",
  ].join("\n");
}

export function parseCritique(text: string, singleStep: boolean): Parsed<Critique> {
  if (singleStep) {
    const parts = sections(text, ["Correctness"]);
    return parts.ok ? parseVerdict(parts.sections.Correctness) : parts;
  }
  const parts = sections(text, ["Future", "Optimality"]);
  if (!parts.ok) return parts;
  const verdict = parseVerdict(parts.sections.Optimality);
  return verdict.ok ? { ...verdict, future: parts.sections.Future } : verdict;
}
