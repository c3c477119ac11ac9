/**
 * Prompts of the successor, which describes what may happen after (s, a). Used on its own if k > 1.
 */

import { malformed, type Parsed } from "./parsing.ts";

/** The request after the action, before its result is known. */
export function successorRequest(): string {
  return [
    "Picture what follows your last action. Describe one course that events may take from here, as far as the",
    "point where the task is achieved or lost. A few short sentences are enough; write only the description.",
  ].join(" ");
}

/** Any non-empty text is a description. */
export function parseFuture(text: string): Parsed<{ future: string }> {
  const future = text.trim();
  return future === "" ? malformed("the description of the future is empty") : { ok: true, future };
}
