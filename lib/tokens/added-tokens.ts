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

  /** Ids of the tokens, and the pieces between them. */
  split(pieces: readonly TextPiece[]): (readonly TextPiece[] | number)[] {
    const parts: (readonly TextPiece[] | number)[] = [];
    let run: TextPiece[] = [];
    let stripping = false;
    const push = (text: string, trusted: boolean) => {
      const rest = stripping ? text.trimStart() : text;
      if (rest === "") return;
      stripping = false;
      run.push({ text: rest, trusted });
    };
    const joined = joinTrusted(pieces);
    for (const [i, { text, trusted }] of joined.entries()) {
      let end = 0;
      for (const match of trusted ? this.find(text) : []) {
        const { token } = match;
        const before = text.slice(0, match.start) || joined[i - 1]?.text || "";
        const after = text.slice(match.end) || joined[i + 1]?.text || "";
        if (token.single_word === true && (endsInWord(before) || startsWithWord(after))) continue;
        push(text.slice(end, match.start), true);
        if (token.lstrip === true) trimEnd(run);
        if (run.length > 0) parts.push(run);
        parts.push(token.id);
        run = [];
        stripping = token.rstrip === true;
        end = match.end;
      }
      push(text.slice(end), trusted);
    }
    if (run.length > 0) parts.push(run);
    return parts;
  }
}

/** Joins trusted pieces that touch, so that a token may span them. */
function joinTrusted(pieces: readonly TextPiece[]): TextPiece[] {
  const joined: TextPiece[] = [];
  for (const { text, trusted } of pieces) {
    if (text === "") continue;
    const last = joined.at(-1);
    if (trusted && last?.trusted) last.text += text;
    else joined.push({ text, trusted });
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
