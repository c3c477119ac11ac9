/**
 * Finds the answer in a solution: the last `\boxed{…}`, or without one the whole text, read as in
 * prose.ts. Every scan is linear in the text.
 */

import { fromProse, isProse, maxAnswerLength } from "./prose.ts";

export { maxAnswerLength };

interface Box {
  content: string;
  start: number;
  end: number;
}

/** All outermost boxes in order. `\fbox{…}` and the braceless `\boxed 5` count too. */
export function boxes(text: string): Box[] {
  const found: Box[] = [];
  const closing = closingBraces(text);
  const opening = /\\f?boxed\b|\\fbox\b/g;
  for (let match = opening.exec(text); match !== null; match = opening.exec(text)) {
    let at = match.index + match[0].length;
    while (at < text.length && /\s/.test(text[at]!)) at++;
    if (text[at] === "{") {
      const close = closing.get(at) ?? -1;
      // For an unclosed box of a truncated text: the content up to the end of its line or formula.
      const content =
        close < 0 ? (/^[^$\n]*/.exec(text.slice(at + 1))?.[0] ?? "") : text.slice(at + 1, close);
      const end = close < 0 ? at + 1 + content.length : close + 1;
      found.push({ content, start: match.index, end });
      opening.lastIndex = end;
    } else {
      const word = /^[^\s$\\{}]+/.exec(text.slice(at, at + maxAnswerLength));
      if (word === null) continue;
      const content = word[0].replace(/[.,;:]+$/, "");
      if (content === "") continue;
      found.push({ content, start: match.index, end: at + content.length });
      opening.lastIndex = at + content.length;
    }
  }
  return found;
}

/**
 * The position of the closing brace of every opening brace that has one. One pass at any nesting.
 */
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
 * The readings of a text's answer, best first; the answer is right if any of them is. Usually there
 * is one. Boxes joined by a comma or "and" are also read as one list.
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
