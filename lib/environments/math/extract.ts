/**
 * Which part of a solution is its answer: the last `\boxed{…}`, and where there is none the whole text, read
 * the way a person would: what follows "final answer is", else the last formula or number.
 * Every scan is linear in the text.
 */

/** Longer answers are compared as text only. */
export const longestAnswer = 2000;

interface Box {
  content: string;
  start: number;
  end: number;
}

/** All boxes in order, nested ones not counted. `\fbox{…}` and the braceless `\boxed 5` count too. */
export function boxes(text: string): Box[] {
  const found: Box[] = [];
  const closing = closingBraces(text);
  const opening = /\\f?boxed\b|\\fbox\b/g;
  for (let match = opening.exec(text); match !== null; match = opening.exec(text)) {
    let at = match.index + match[0].length;
    while (at < text.length && /\s/.test(text[at]!)) at++;
    if (text[at] === "{") {
      const close = closing.get(at) ?? -1;
      // An unclosed box: what a cut-off text holds up to the end of its line or formula.
      const content =
        close < 0 ? (/^[^$\n]*/.exec(text.slice(at + 1))?.[0] ?? "") : text.slice(at + 1, close);
      const end = close < 0 ? at + 1 + content.length : close + 1;
      found.push({ content, start: match.index, end });
      opening.lastIndex = end;
    } else {
      const word = /^[^\s$\\{}]+/.exec(text.slice(at, at + longestAnswer));
      if (word === null) continue;
      const content = word[0].replace(/[.,;:]+$/, "");
      if (content === "") continue;
      found.push({ content, start: match.index, end: at + content.length });
      opening.lastIndex = at + content.length;
    }
  }
  return found;
}

/** For every opening brace that is closed, where. One pass, whatever the nesting. */
export function closingBraces(text: string): Map<number, number> {
  const closing = new Map<number, number>();
  const open: number[] = [];
  for (let i = 0; i < text.length; i++) {
    const character = text[i];
    if (character === "\\") i++;
    else if (character === "{") open.push(i);
    else if (character === "}" && open.length > 0) closing.set(open.pop()!, i);
  }
  return closing;
}

export function hasBox(text: string): boolean {
  return boxes(text).length > 0;
}

/**
 * The readings of a text's answer, best first; the answer is right when one of them is. There is one reading,
 * except that boxes joined by a comma or "and" are also read as one list.
 */
export function answerCandidates(text: string): string[] {
  const found = boxes(text);
  const last = found.at(-1);
  if (last !== undefined) {
    let first = found.length - 1;
    while (first > 0 && joins(text.slice(found[first - 1]!.end, found[first]!.start))) first--;
    const joined = found.slice(first).map((box) => box.content.trim());
    return joined.length > 1 ? [joined.at(-1)!, joined.join(", ")] : [joined[0]!];
  }
  const whole = text.trim();
  if (!isProse(whole)) return [whole];
  const reading = fromProse(whole);
  return reading === undefined || reading === whole ? [whole] : [whole, reading];
}

function joins(between: string): boolean {
  if (between.length > 60) return false;
  const bare = between.replace(/\\q?quad\b|\\text\s*\{|\\[()[\],;]|[${}\s.]/g, "");
  return /^(,|and|or|;|,and|,or|[a-z]+and|)$/.test(bare) && (bare !== "" || /^\s*$/.test(between));
}

/** Two or more plain words outside of commands and text boxes. */
function isProse(text: string): boolean {
  const outside = text.slice(0, 20_000).replace(/\\[a-zA-Z]+\s*(\{[^{}]*\})?/g, " ");
  const words = outside.match(/[A-Za-z]{2,}/g) ?? [];
  return (
    words.length >= 2 || (words.length > 0 && /\$|\\\(|\\\[/.test(outside)) || text.length > longestAnswer
  );
}

function fromProse(text: string): string | undefined {
  const marker = /(?:final\s+answer|answer)\s*(?:is|:)\s*:?/gi;
  let after = -1;
  for (let match = marker.exec(text); match !== null; match = marker.exec(text)) after = marker.lastIndex;
  if (after >= 0) {
    const rest = text
      .slice(after, after + 4 * longestAnswer)
      .replace(/\.?\s*I hope it is correct[\s\S]*/, "");
    const formula = lastFormula(rest);
    if (formula !== undefined) return formula.content;
    const line = /^\s*\**\s*([^\n]+)/.exec(rest)?.[1]?.replace(/[\s.*]+$/, "");
    if (line !== undefined && line !== "") {
      if (!/[A-Za-z]{2,}/.test(line)) return line;
      return lastNumber(line) ?? line;
    }
  }
  const formula = lastFormula(text);
  return lastNumber(text.slice(formula?.end)) ?? formula?.content;
}

/** The last non-empty `$…$`, `$$…$$`, `\(…\)` or `\[…\]`. */
function lastFormula(text: string): { content: string; end: number } | undefined {
  let last: { content: string; end: number } | undefined;
  const unclosed = new Set<string>();
  const opening = /\$\$?|\\\(|\\\[/g;
  for (let match = opening.exec(text); match !== null; match = opening.exec(text)) {
    const close = match[0] === "\\(" ? "\\)" : match[0] === "\\[" ? "\\]" : match[0];
    const from = match.index + match[0].length;
    const end = unclosed.has(close) ? -1 : text.indexOf(close, from);
    if (end < 0) {
      unclosed.add(close);
      continue;
    }
    const content = text.slice(from, end).trim();
    if (content !== "" && content.length <= longestAnswer) {
      const after = /^\s*(%|pct\b|percent\b)/.exec(text.slice(end + close.length, end + close.length + 12));
      const past = end + close.length + (after?.[0].length ?? 0);
      last = { content: after === null ? content : `${content}%`, end: past };
    }
    opening.lastIndex = end + close.length;
  }
  return last;
}

function lastNumber(text: string): string | undefined {
  const tail = text.slice(-20_000);
  const number =
    /(?<![A-Za-z\d.])[-−]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:\s*\/\s*\d+)?(?:\s*%)?/g;
  return (tail.match(number) ?? []).at(-1);
}
