/**
 * Distinguishes, in the output of a chat template, the template's own text from that of messages.
 *
 * Every added token that the template's own literals or variables spell is replaced by a mark while
 * the template runs. A mark consists of characters that occur in no message, so no filter of the
 * template and no normalizer can make one from a message.
 */

import { NlacError } from "../base/errors.ts";
import type { TextPiece } from "./added-tokens.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** 32 adjacent UTF-16 units, by the first: noncharacters, then private-use characters. */
const alphabets = [0xfdd0, ...Array.from({ length: 199 }, (_, i) => 0xe000 + 32 * i)];

/** A mark is the first character of the alphabet, then two of the 31 others. */
const digits = 31;

/**
 * The first alphabet none of whose characters occur in `texts`. Throws ERR_TOKENIZER without one.
 */
export function unusedAlphabet(texts: readonly string[]): number {
  const used = new Set<number>();
  for (const text of texts) {
    for (let i = 0; i < text.length; i++) {
      const unit = text.charCodeAt(i);
      if (unit >= 0xe000 && unit < 0xfdf0) used.add(unit & ~31);
      // The noncharacters start in the middle of such a block.
      if (unit >= 0xfdd0 && unit < 0xfdf0) used.add(0xfdd0);
    }
  }
  const alphabet = alphabets.find((first) => !used.has(first));
  if (alphabet !== undefined) return alphabet;
  throw new NlacError(
    "ERR_TOKENIZER",
    "The messages contain characters of every block of Unicode's private use area.",
  );
}

/** Writes and reads the marks of one template. */
export class Marks {
  readonly #first: number;
  readonly #texts: string[] = [];
  readonly #marks = new Map<string, string>();
  readonly #pattern: RegExp;

  /** @param alphabet from `unusedAlphabet` */
  constructor(alphabet: number) {
    this.#first = alphabet;
    const [first, second, last] = [0, 1, digits].map((i) => String.fromCharCode(alphabet + i));
    this.#pattern = new RegExp(`${first}([${second}-${last}])([${second}-${last}])`, "g");
  }

  /** The mark of a trusted text. */
  of(text: string): string {
    const known = this.#marks.get(text);
    if (known !== undefined) return known;
    const index = this.#texts.length;
    if (index === digits * digits) {
      throw new NlacError("ERR_TOKENIZER", `The chat template contains more than ${index} control tokens.`);
    }
    this.#texts.push(text);
    const mark = String.fromCharCode(
      this.#first,
      this.#first + 1 + Math.floor(index / digits),
      this.#first + 1 + (index % digits),
    );
    this.#marks.set(text, mark);
    return mark;
  }

  /** The pieces of a text with marks. */
  read(text: string): TextPiece[] {
    const pieces: TextPiece[] = [];
    let end = 0;
    for (const match of text.matchAll(this.#pattern)) {
      const index =
        (match[1]!.charCodeAt(0) - this.#first - 1) * digits + match[2]!.charCodeAt(0) - this.#first - 1;
      const trusted = this.#texts[index];
      if (trusted === undefined) continue;
      if (match.index > end) pieces.push({ text: text.slice(end, match.index), trusted: false });
      pieces.push({ text: trusted, trusted: true });
      end = match.index + match[0].length;
    }
    if (end < text.length) pieces.push({ text: text.slice(end), trusted: false });
    return pieces;
  }
}

/**
 * "whole": literals that spell a whole added token. "assembled": also the parts of a token around
 * the role, as in `<|{{ message.role }}|>`.
 */
export type MarkScope = "whole" | "assembled";

/** A function that replaces the added tokens in a literal of a template by marks. */
export function literalMarker(
  tokenizer: Tokenizer,
  marks: Marks,
  scope: MarkScope,
  roles: ReadonlySet<string>,
): (literal: string) => string {
  const marked = new Map<string, string>();
  const { heads, tails } = scope === "assembled" ? punctuation(tokenizer) : noParts;
  const markWhole = (literal: string): string => {
    if (scope === "assembled" && roles.has(literal)) return marks.of(literal);
    const tokens = tokenizer.findAdded(literal);
    const from = tokens[0]?.start ?? literal.length;
    const to = tokens.at(-1)?.end ?? 0;
    // The end of a literal may start a token, and its start may end one.
    const head = longest(literal.length - to, (n) => heads.has(literal.slice(-n)));
    const tail = longest(Math.min(from, literal.length - head), (n) => tails.has(literal.slice(0, n)));
    const all = [
      ...(tail > 0 ? [{ start: 0, end: tail }] : []),
      ...tokens,
      ...(head > 0 ? [{ start: literal.length - head, end: literal.length }] : []),
    ];
    let [text, done] = ["", 0];
    for (const { start, end } of all) {
      text += literal.slice(done, start) + marks.of(literal.slice(start, end));
      done = end;
    }
    return text + literal.slice(done);
  };
  return (literal) => {
    let text = marked.get(literal);
    if (text === undefined) {
      text = markWhole(literal);
      if (marked.size < maxRemembered) marked.set(literal, text);
    }
    return text;
  };
}

const maxRemembered = 10_000;
/** Longest part of an assembled token around the role. */
const maxPart = 16;
const noParts = { heads: new Set<string>(), tails: new Set<string>() };

/** The starts and ends of added tokens that consist of punctuation, such as `<|` and `|>`. */
function punctuation(tokenizer: Tokenizer): typeof noParts {
  const [heads, tails] = [new Set<string>(), new Set<string>()];
  for (const id of tokenizer.addedIds) {
    const text = tokenizer.contentOf(id)!;
    const head = /^[\p{P}\p{S}]*/u.exec(text)![0];
    const tail = /[\p{P}\p{S}]*$/u.exec(text.slice(-maxPart))![0];
    for (let n = 1; n <= Math.min(head.length, text.length - 1, maxPart); n++) heads.add(head.slice(0, n));
    for (let n = 1; n <= Math.min(tail.length, text.length - 1); n++) tails.add(tail.slice(-n));
  }
  return { heads, tails };
}

/** The largest n up to `most` and `maxPart` with `holds(n)`; 0 without one. */
function longest(most: number, holds: (n: number) => boolean): number {
  for (let n = Math.min(most, maxPart); n > 0; n--) if (holds(n)) return n;
  return 0;
}
