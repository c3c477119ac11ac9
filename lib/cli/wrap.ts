/** Wraps text for terminals. */

import wrapAnsi from "wrap-ansi";
import { printable } from "../display/printable.ts";

/**
 * Wraps each line of `text` to at most `columns` columns, between words. Continuation lines are
 * indented like the first word of their line, or by `indent` columns. A longer word stays whole.
 */
export function wrap(text: string, columns: number, indent?: number): string {
  return text
    .split("\n")
    .map((whole) => {
      const line = whole.trimEnd();
      const margin = Math.min(indent ?? line.search(/\S|$/), line.length);
      const wrapped = wrapAnsi(line.slice(margin), Math.max(1, columns - margin));
      return line.slice(0, margin) + wrapped.replaceAll("\n", `\n${" ".repeat(margin)}`);
    })
    .join("\n");
}

/** A sentence that spans several lines. */
const sentence = /^.+(?:(?<=[\p{Ll},])\n(?=\p{Ll}).+)+/gmu;

/**
 * Wraps `text` to the terminal's width, with its control characters visible; returns it unchanged if
 * stdout has no width. A sentence with a line that is too long is rewrapped as a whole.
 */
export function fitted(text: string): string {
  const { columns } = process.stdout;
  if (!(columns > 20)) return text;
  const joined = printable(text).replaceAll(sentence, (lines) =>
    lines.split("\n").some(({ length }) => length > columns) ? lines.replaceAll("\n", " ") : lines,
  );
  return wrap(joined, columns);
}
