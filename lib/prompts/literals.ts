/**
 * Literals of calls, spelled as in JSON or as in Python: models learn the latter from templates that
 * render values with `| string`.
 */

import type { Cursor } from "./cursor.ts";

const words: Readonly<Record<string, string>> = {
  ...{ true: "true", false: "false", null: "null" },
  ...{ True: "true", False: "false", None: "null" },
};

/** JSON's spelling of true, false or null; undefined for other words. */
export function jsonWord(word: string): string | undefined {
  return Object.hasOwn(words, word) ? words[word] : undefined;
}

/** The number at the cursor, as it is spelled, or its word as JSON; undefined without one. */
export function literalAt(cursor: Cursor): string | undefined {
  const number = cursor.take(/-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])/y)?.[0];
  return number ?? jsonWord(cursor.take(/[A-Za-z]+/y)?.[0] ?? "");
}
