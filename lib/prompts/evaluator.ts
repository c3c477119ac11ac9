/**
 * Prompts of the evaluator, which judges (s, a) from k futures that the successor generated. Used
 * if k > 1.
 */

import { type Parsed, parseVerdict, sections, type Verdict } from "./parsing.ts";

export function evaluatorRequest(futures: readonly string[]): string {
  const list = futures.map((future, i) => `${i + 1}. ${future.trim().replaceAll("\n", " ")}`).join("\n");
  return [
    `Here are ${futures.length} ways in which things may go on after your last action:`,
    "",
    list,
    "",
    "Weigh them together and judge that action. Answer in exactly this form:",
    "",
    "Optimality:",
    '<"Yes" or "No". After a "No", one sentence on how to improve the action, argued from the futures above.>',
    "",
    "Stop after the judgement.",
  ].join("\n");
}

export function parseEvaluation(text: string): Parsed<Verdict> {
  const parts = sections(text, ["Optimality"]);
  return parts.ok ? parseVerdict(parts.sections.Optimality) : parts;
}
