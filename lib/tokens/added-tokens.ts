/**
 * Finds added tokens, such as `<|im_end|>`, in text. Only trusted text is searched: a token is
 * found if all of its characters come from a chat template or from the caller's own text.
 */

import type { AddedToken } from "./format.ts";

/** A part of a text, by its origin. */
export interface TextPiece {
  text: string;
  /** Whether added tokens are recognised in it. */
  trusted: boolean;
}

interface Node {
  readonly next: Map<number, Node>;
  token?: AddedToken;
}

/** A token in a text; `[start, end)` in UTF-16 units. */
interface Match {
  token: AddedToken;
  start: number;
  end: number;
}

/** Finds the leftmost token first, and the longest of several. */
export class AddedTokenMatcher {
  readonly empty: boolean;
  readonly #root: Node = { next: new Map() };

  constructor(tokens: readonly AddedToken[]) {
    this.empty = tokens.length === 0;
    for (const token of tokens) {
      let node = this.#root;
      for (let i = 0; i < token.content.length; i++) {
        const unit = token.content.charCodeAt(i);
        let next = node.next.get(unit);
        if (next === undefined) {
          next = { next: new Map() };
          node.next.set(unit, next);
        }
        node = next;
      }
      node.token = token;
    }
  }

  *find(text: string): Generator<Match> {
    for (let start = 0; start < text.length; start++) {
      let found: Match | undefined;
      let node: Node | undefined = this.#root;
      for (let i = start; node !== undefined && i < text.length; i++) {
        node = node.next.get(text.charCodeAt(i));
        if (node?.token !== undefined) found = { token: node.token, start, end: i + 1 };
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
    let stripping = false;
    const push = ({ text, trusted, borders }: JoinedPiece, from: number, to: number) => {
      const inside = borders.filter((border) => border > from && border < to);
      for (const [i, end] of [...inside, to].entries()) {
        const part = text.slice(inside[i - 1] ?? from, end);
        const rest = stripping ? part.trimStart() : part;
        if (rest === "") continue;
        stripping = false;
        run.push({ text: rest, trusted });
      }
    };
    const joined = joinTrusted(pieces);
    for (const [i, piece] of joined.entries()) {
      const { text, trusted } = piece;
      let end = 0;
      for (const match of trusted ? this.find(text) : []) {
        const { token } = match;
        const before = text.slice(0, match.start) || joined[i - 1]?.text || "";
        const after = text.slice(match.end) || joined[i + 1]?.text || "";
        if (token.single_word === true && (endsInWord(before) || startsWithWord(after))) continue;
        push(piece, end, match.start);
        if (token.lstrip === true) trimEnd(run);
        if (run.length > 0) parts.push(run);
        parts.push(token.id);
        run = [];
        stripping = token.rstrip === true;
        end = match.end;
      }
      push(piece, end, text.length);
    }
    if (run.length > 0) parts.push(run);
    return parts;
  }
}

/** Trusted pieces that touch, as one; `borders` are where they do. */
interface JoinedPiece extends TextPiece {
  borders: number[];
}

function joinTrusted(pieces: readonly TextPiece[]): JoinedPiece[] {
  const joined: JoinedPiece[] = [];
  for (const { text, trusted } of pieces) {
    if (text === "") continue;
    const last = joined.at(-1);
    if (trusted && last?.trusted) {
      last.borders.push(last.text.length);
      last.text += text;
    } else joined.push({ text, trusted, borders: [] });
  }
  return joined;
}

function trimEnd(run: TextPiece[]): void {
  for (let last = run.at(-1); last !== undefined; last = run.at(-1)) {
    last.text = last.text.trimEnd();
    if (last.text !== "") return;
    run.pop();
  }
}

const wordCharacter = /^[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]/u;

function startsWithWord(text: string): boolean {
  return wordCharacter.test(text.slice(0, 2));
}

function endsInWord(text: string): boolean {
  return wordCharacter.test(Array.from(text.slice(-2)).at(-1) ?? "");
}
