/**
 * Finds the answer in a solution without a box: the text after "Final Answer:" or "answer is", else
 * the last sentence with mathematics in it. Every scan is linear in the text.
 */

/** Longer answers are compared only as text. */
export const maxAnswerLength = 2000;

/** Two or more plain words outside of commands and text boxes, or one that begins a sentence. */
export function isProse(text: string): boolean {
  const outside = text.slice(0, 20_000).replace(/\\[a-zA-Z]+\s*(\{[^{}]*\})?/g, " ");
  const words = outside.match(/[A-Za-z]{2,}/g) ?? [];
  return (
    words.length >= 2 ||
    (words.length > 0 && /\$|\\\(|\\\[|^\W*[A-Z][a-z]+[:,\s]/.test(outside)) ||
    text.length > maxAnswerLength
  );
}

export function fromProse(text: string): string | undefined {
  const found = formulas(text);
  const marked = afterMarker(text);
  if (marked !== undefined) {
    const end = Math.min(text.length, marked + 4 * maxAnswerLength);
    const near = found.filter((piece) => piece.end > marked && piece.start < end);
    const shown = masked(text.slice(marked, end), near, marked);
    for (const sentence of sentences(shown, marked)) {
      const stated = statedAnswer(sentence, shown, marked, near);
      if (stated !== undefined) return stated;
    }
    // A word, as in "The answer is odd."
    const line = /^[\s*:#]*([^\n]+)/.exec(text.slice(marked, end))?.[1]?.replace(/[\s.*]+$/, "");
    if (line !== undefined && line !== "") return line;
  }
  const from = Math.max(0, text.length - 10 * maxAnswerLength);
  const near = found.filter((piece) => piece.end > from);
  const shown = masked(text.slice(from), near, from);
  for (const sentence of [...sentences(shown, from)].reverse()) {
    const stated = statedAnswer(sentence, shown, from, near);
    if (stated !== undefined) return stated;
  }
  return undefined;
}

/** End of the last "Final Answer:", "**Final Answer**" or "answer is". */
function afterMarker(text: string): number | undefined {
  const marker = /\b(?:final\s{1,4}answer\b[*\s]{0,6}(?:is\b|:|\n)|answer[*\s]{0,4}(?:is\b|:))[*:\s]{0,6}/gi;
  let after: number | undefined;
  for (let match = marker.exec(text); match !== null; match = marker.exec(text)) {
    // Skips a heading at the end with nothing after it.
    if (/\S/.test(text.slice(marker.lastIndex, marker.lastIndex + maxAnswerLength))) after = marker.lastIndex;
  }
  return after;
}

/** A part of the text that contains mathematics, and its position. */
interface Piece {
  content: string;
  start: number;
  end: number;
}

/** The non-empty `$…$`, `$$…$$`, `\(…\)` and `\[…\]`. */
function formulas(text: string): Piece[] {
  const found: Piece[] = [];
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
    if (content !== "" && content.length <= maxAnswerLength) {
      const after = /^\s*(%|pct\b|percent\b)/.exec(text.slice(end + close.length, end + close.length + 12));
      found.push({
        content: after === null ? content : `${content}%`,
        start: match.index,
        end: end + close.length + (after?.[0].length ?? 0),
      });
    }
    opening.lastIndex = end + close.length;
  }
  return found;
}

const mask = "\uFFFC";

/**
 * A part of a text, which begins at `from`, with its formulas masked, so that full stops and words
 * in formulas are not read as part of the sentence.
 */
function masked(part: string, found: readonly Piece[], from: number): string {
  let shown = "";
  for (const { start, end } of found) {
    const begin = Math.max(start - from, shown.length);
    shown += part.slice(shown.length, begin);
    shown += mask.repeat(Math.max(0, Math.min(end - from, part.length) - begin));
  }
  return shown + part.slice(shown.length);
}

interface Span {
  start: number;
  end: number;
}

/** Sentences and paragraphs, without a closing courtesy. */
function* sentences(shown: string, from: number): Generator<Span> {
  const courtesy = /I hope it is correct/i.exec(shown)?.index ?? shown.length;
  const boundary = /[.!?](?=\s)|\n\s*\n/g;
  let start = 0;
  while (start < courtesy) {
    const end = boundary.exec(shown)?.index ?? shown.length;
    if (end > start) yield { start: start + from, end: Math.min(end, courtesy) + from };
    if (end === shown.length) return;
    start = end + 1;
  }
}

/**
 * A sentence's last piece and pieces joined to it by a comma or "and", without reasons and
 * conditions.
 */
function statedAnswer(
  { start, end }: Span,
  shown: string,
  from: number,
  found: readonly Piece[],
): string | undefined {
  const sentence = shown.slice(start - from, end - from);
  const inside = found.filter((piece) => piece.start >= start && piece.start < end);
  let pieces = [...inside, ...plainPieces(sentence, start)].sort((a, b) => a.start - b.start);
  const reason = /[\s,](?:because|since|where|when|attained|achieved|if)\b/.exec(sentence);
  const before = pieces.filter((piece) => reason !== null && piece.start < start + reason.index);
  if (before.length > 0) pieces = before;
  const last = pieces.at(-1);
  if (last === undefined) return undefined;
  const joined = [last];
  for (let i = pieces.length - 2; i >= 0; i--) {
    const piece = pieces[i]!;
    const between = shown.slice(piece.end - from, joined[0]!.start - from);
    const word = /^[\s,]*\b(?:and|or)\b\s*$/.test(between);
    const comma = /^\s*,\s*$/.test(between) && (joined.length > 1 || !/=/.test(piece.content + last.content));
    if (!word && !comma) break;
    joined.unshift(piece);
  }
  return joined.map((piece) => piece.content).join(", ");
}

/** Units directly after a number. */
const unit = /(?<=\d)(?:[ckm]?m|ft|k?g|s|h)[²³]?$/;
const operators = /^[-−+*/^=<>≤≥≠±×·]+$/;
const functionsAndConstants = /sqrt|sin|cos|tan|log|ln|exp|infty|infinity|pi|oo/g;

/** Expressions outside of formulas: runs of words made of digits, brackets, operators and names. */
function plainPieces(sentence: string, from: number): Piece[] {
  const words = [...sentence.matchAll(/[^\s\uFFFC]+/g)].map((match) => ({ text: match[0], at: match.index }));
  const isMath = words.map(({ text }) => isMathematics(text));
  const isOperator = words.map(({ text }) => operators.test(text));
  // A letter beside an operator is a name; alone it may be the article "a".
  for (const [i, { text }] of words.entries())
    if (/^[a-zA-Z]$/.test(text) && (isOperator[i - 1] || isOperator[i + 1])) isMath[i] = true;
  const found: Piece[] = [];
  for (let i = 0; i < words.length; i++) {
    if (!isMath[i] || isOperator[i]) continue;
    let last = i;
    let depth = 0;
    for (; ; last++) {
      depth += depthOf(words[last]!.text);
      if (depth <= 0 && /[,;:]$/.test(words[last]!.text)) break;
      if (!isMath[last + 1] && !isOperator[last + 1]) break;
    }
    const first = isOperator[i - 1] && words[i - 1]!.text === "-" ? i - 1 : i;
    const start = words[first]!.at;
    const end = words[last]!.at + words[last]!.text.length;
    const content = sentence
      .slice(start, end)
      .replace(/^[*"'“]+|[*"'”.,;:!?]+$/g, "")
      .replace(unit, "");
    const percent = /^\s*(?:%|pct\b|percent\b)/.test(sentence.slice(end, end + 12)) ? "%" : "";
    if (/[\d∞π]/.test(content) && content.length <= maxAnswerLength)
      found.push({ content: content + percent, start: from + start, end: from + start + content.length });
    i = last;
  }
  return found;
}

/** Opening minus closing brackets of a word. */
function depthOf(word: string): number {
  return (word.match(/[([{]/g)?.length ?? 0) - (word.match(/[)\]}]/g)?.length ?? 0);
}

function isMathematics(word: string): boolean {
  if (word.length > maxAnswerLength || !/[\d∞π]/.test(word)) return false;
  const bare = word.replace(/^[*"'“]+|[*"'”.,;:!?]+$/g, "");
  return !/[A-Za-z]{2,}/.test(bare.replace(unit, "").replace(functionsAndConstants, ""));
}
