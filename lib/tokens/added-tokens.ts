/**
 * Finds added tokens, such as `<|im_end|>`, in text. A token is found if all of its characters come
 * from a chat template or from the caller's own text; whitespace is found in any text.
 */

import { getOrAdd } from "../base/get-or-add.ts";
import { type AddedToken, isPlain } from "./format.ts";
import { spacesAfter, spacesBefore } from "./spaces.ts";

/** A part of a text, by its origin. */
export interface TextPiece {
  text: string;
  /** Whether added tokens are recognised in it. */
  trusted: boolean;
}

interface Node {
  readonly next: Map<number, Node>;
  token?: AddedToken;
  /** Whether it is found in any text. */
  plain?: boolean;
}

/** A token in a text; `[start, end)` in UTF-16 units. */
interface Match {
  token: AddedToken;
  start: number;
  end: number;
}

/** Finds the leftmost token first, and the longest of several. */
export class AddedTokenMatcher {
  readonly #empty: boolean;
  /** Whether tokens of whitespace are among them. */
  readonly #plain: boolean;
  readonly #root: Node = { next: new Map() };

  constructor(tokens: readonly AddedToken[]) {
    this.#empty = tokens.length === 0;
    this.#plain = tokens.some(isPlain);
    for (const token of tokens) {
      let node = this.#root;
      for (let i = 0; i < token.content.length; i++)
        node = getOrAdd(node.next, token.content.charCodeAt(i), () => ({ next: new Map() }));
      node.token = token;
      node.plain = isPlain(token);
    }
  }

  /** Whether tokens may be found in text of these origins. */
  findsIn(pieces: readonly TextPiece[]): boolean {
    return !this.#empty && (this.#plain || pieces.some(({ trusted }) => trusted));
  }

  find(text: string): Generator<Match> {
    return this.#find(text, [{ start: 0, end: text.length }]);
  }

  /** @param trusted runs of trusted text, in order */
  *#find(text: string, trusted: readonly { start: number; end: number }[]): Generator<Match> {
    let run = 0;
    for (let start = 0; start < text.length; start++) {
      while (run < trusted.length && trusted[run]!.end <= start) run++;
      const next = trusted[run];
      const trustedEnd = next !== undefined && next.start <= start ? next.end : start;
      if (trustedEnd === start && !this.#plain) {
        if (next === undefined) return;
        start = next.start - 1;
        continue;
      }
      let found: Match | undefined;
      let node: Node | undefined = this.#root;
      for (let i = start; node !== undefined && i < text.length; i++) {
        node = node.next.get(text.charCodeAt(i));
        if (node?.token === undefined || (i >= trustedEnd && node.plain !== true)) continue;
        found = { token: node.token, start, end: i + 1 };
      }
      if (found === undefined) continue;
      yield found;
      start = found.end - 1;
    }
  }

  /**
   * Ids of the tokens, and the pieces between them. A token may span pieces; other pieces stay
   * apart, because a normalizer may treat the start of each specially.
   */
  split(pieces: readonly TextPiece[]): (readonly TextPiece[] | number)[] {
    const parts: (readonly TextPiece[] | number)[] = [];
    let run: TextPiece[] = [];
    const { text, ends, trusted } = laidOut(pieces);
    let piece = 0;
    const push = (from: number, to: number) => {
      while (from < to) {
        while (ends[piece]! <= from) piece++;
        const end = Math.min(ends[piece]!, to);
        run.push({ text: text.slice(from, end), trusted: pieces[piece]!.trusted });
        from = end;
      }
    };
    let end = 0;
    let spacesEnd = 0; // of those after the last token that takes them
    for (const match of this.#find(text, trusted)) {
      const { token } = match;
      if (token.single_word === true && isInsideWord(text, match)) continue;
      const start = token.lstrip === true ? Math.max(end, spacesBefore(text, match.start, end)) : match.start;
      if (token.rstrip === true && match.end > spacesEnd) spacesEnd = spacesAfter(text, match.end);
      const stop = token.rstrip === true ? spacesEnd : match.end;
      push(end, start);
      if (run.length > 0) parts.push(run);
      // Spaces that the token before took with it are not a token of spaces.
      if (stop > start) parts.push(token.id);
      run = [];
      end = stop;
    }
    push(end, text.length);
    if (run.length > 0) parts.push(run);
    return parts;
  }
}

/** The pieces as one text, the end of each in it, and the runs of trusted text. */
function laidOut(pieces: readonly TextPiece[]) {
  const ends: number[] = [];
  const trusted: { start: number; end: number }[] = [];
  let text = "";
  for (const piece of pieces) {
    const start = text.length;
    text += piece.text;
    ends.push(text.length);
    if (!piece.trusted || piece.text === "") continue;
    const last = trusted.at(-1);
    if (last?.end === start) last.end = text.length;
    else trusted.push({ start, end: text.length });
  }
  return { text, ends, trusted };
}

function isInsideWord(text: string, { start, end }: Match): boolean {
  return endsInWord(text.slice(Math.max(0, start - 2), start)) || startsWithWord(text.slice(end, end + 2));
}

const wordCharacter = /^[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]/u;

function startsWithWord(text: string): boolean {
  return wordCharacter.test(text.slice(0, 2));
}

function endsInWord(text: string): boolean {
  return wordCharacter.test(Array.from(text.slice(-2)).at(-1) ?? "");
}
