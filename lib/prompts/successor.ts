/** The successor: what may happen after (s, a), as a short description. Used alone when k > 1. */

import { malformed, type Parsed } from "./parsing.ts";

/** Asked after the action, before its result is known. */
export function successorRequest(): string {
  return [
    "Picture what follows your last action. Describe one course that events may take from here, as far as the",
    "point where the task is achieved or lost. A few short sentences are enough; write only the description.",
  ].join(" ");
}

/** Any text that is not empty is a description. */
export function parseFuture(text: string): Parsed<{ future: string }> {
  const future = text.trim();
  return future === "" ? malformed("the description of the future is empty") : { ok: true, future };
}
