/** Prompts of the refiner, which improves the latest action given its critique. */

import { type ActionFormat, actionFormatText } from "./policy.ts";

export function refinerRequest(format: ActionFormat): string {
  if (format === "solution") {
    return [
      "Use that judgement to write a better solution to the problem, free of the errors it names (a correct solution",
      `may be repeated). ${actionFormatText(format)}`,
      "It replaces the earlier solution: mention neither that one nor the judgement.",
    ].join("\n");
  }
  return [
    "Decide from that judgement whether your latest action was the best one, and write a revised action without its",
    "faults (an action that was already best may be repeated). Answer in exactly this form:",
    "",
    actionFormatText(format),
    "",
    "The revised action takes the place of the latest one; it does not come after it.",
    "Mention neither the earlier action nor its judgement.",
  ].join("\n");
}
