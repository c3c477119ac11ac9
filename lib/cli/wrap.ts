/** Text for terminals: lines that end between words. */

/**
 * `text`, whose own lines stay apart, in lines of at most `columns` characters. What goes on in a further line begins
 * below its line's first word, or `indent` columns from the left. A word that is longer has a line of its own.
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

/** A sentence in several lines, of which each goes on in the next. */
const sentence = /^.+(?:(?<=[\p{Ll},])\n(?=\p{Ll}).+)+/gmu;

/**
 * As wide as the terminal is, where stdout is one that says so. A sentence whose own lines are too long for it is cut
 * anew as a whole.
 */
export function fitted(text: string): string {
  const { columns } = process.stdout;
  if (!(columns > 20)) return text;
  const joined = text.replaceAll(sentence, (lines) =>
    lines.split("\n").some(({ length }) => length > columns) ? lines.replaceAll("\n", " ") : lines,
  );
  return wrap(joined, columns);
}
