/** Wraps text for terminals. */

/**
 * Wraps each line of `text` to at most `columns` characters, between words. Continuation lines
 * are indented like the first word of their line, or by `indent` columns. A longer word stays
 * whole.
 */
export function wrap(text: string, columns: number, indent?: number): string {
  return text
    .split("\n")
    .flatMap((line) => wrapLine(line, columns, indent ?? /^ */.exec(line)![0].length))
    .join("\n");
}

function wrapLine(line: string, columns: number, indent: number): string[] {
  const lines: string[] = [];
  let rest = line.trimEnd();
  while (rest.length > columns) {
    let end = rest.lastIndexOf(" ", columns);
    if (end <= indent) end = rest.indexOf(" ", Math.max(columns, indent));
    if (end < 0) break;
    lines.push(rest.slice(0, end).trimEnd());
    rest = " ".repeat(indent) + rest.slice(end).trimStart();
  }
  return [...lines, rest];
}

/** A sentence that spans several lines. */
const sentence = /^.+(?:(?<=[\p{Ll},])\n(?=\p{Ll}).+)+/gmu;

/**
 * Wraps `text` to the terminal's width; returns it unchanged if stdout has no width. A sentence
 * with a line that is too long is rewrapped as a whole.
 */
export function fitted(text: string): string {
  const { columns } = process.stdout;
  if (!(columns > 20)) return text;
  const joined = text.replaceAll(sentence, (lines) =>
    lines.split("\n").some(({ length }) => length > columns) ? lines.replaceAll("\n", " ") : lines,
  );
  return wrap(joined, columns);
}
