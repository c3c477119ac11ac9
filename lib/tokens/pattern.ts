/**
 * The patterns of normalizers and pre-tokenizers: regular expressions of Oniguruma, as JavaScript's.
 * The package of the converter reads possessive quantifiers and atomic groups as ordinary ones, and
 * ignores the case of ASCII letters only; these are rewritten before.
 */

import { Tokenizer as HuggingFaceTokenizer } from "@huggingface/tokenizers";
import { NlacError } from "../base/errors.ts";
import { isObject } from "../base/validation.ts";

/**
 * The pattern of a rule: `{ Regex }`, or `{ String }` for a text.
 *
 * @throws NlacError ERR_MODEL_FORMAT for what has no equal in JavaScript
 */
export function compilePattern(pattern: unknown): RegExp {
  const regex = isObject(pattern) ? pattern.Regex : undefined;
  try {
    const { pre_tokenizer } = new HuggingFaceTokenizer(
      {
        added_tokens: [],
        normalizer: null,
        pre_tokenizer: {
          type: "Split",
          pattern: typeof regex === "string" ? { Regex: rewritten(regex) } : pattern,
          behavior: "Isolated",
          invert: false,
        },
        post_processor: null,
        decoder: null,
        model: { type: "BPE", vocab: {}, merges: [] },
      } as never,
      {},
    );
    const compiled = (pre_tokenizer as unknown as { pattern?: RegExp | null }).pattern;
    if (compiled instanceof RegExp) return compiled;
  } catch (error) {
    throw new NlacError("ERR_MODEL_FORMAT", `Unsupported pattern: ${JSON.stringify(pattern)}.`, {
      cause: error,
    });
  }
  throw new NlacError("ERR_MODEL_FORMAT", `Unsupported pattern: ${JSON.stringify(pattern)}.`);
}

/** Where a pattern matches, in order. A match may be empty, but not right after another. */
export function* matchesOf(text: string, pattern: RegExp): Generator<{ start: number; end: number }> {
  let last = -1;
  for (const match of text.matchAll(pattern)) {
    const [start, end] = [match.index, match.index + match[0].length];
    if (start === end && start === last) continue;
    yield { start, end };
    last = end;
  }
}

/** Most atomic groups of a pattern: each is cut out of what was written before. */
const maxAtomic = 64;

/** Parts of a pattern. A class may contain others. */
const parts = {
  escape: /\\(?:[pPxu]\{[^}]*\}|x[\da-fA-F]{2}|u[\da-fA-F]{4}|c.|.)/suy,
  open: /\((?:\?(?:<?[=!]|[:>]|i:|<[A-Za-z_]\w*>))?/uy,
  quantifier: /(?:[*+?]|\{(?:\d+(?:,\d*)?|,\d+)\})[?+]?/uy,
  character: /./suy,
};

function partAt(part: keyof typeof parts, source: string, index: number): string | undefined {
  parts[part].lastIndex = index;
  return parts[part].exec(source)?.[0];
}

/**
 * The same pattern without possessive quantifiers, atomic groups and groups that ignore case. JavaScript
 * does not backtrack into a lookahead, so `(?>x)` is `(?=(?<_1>x))\k<_1>`.
 */
function rewritten(source: string): string {
  let out = "";
  let atom = 0; // where the last one starts in `out`
  let ignoresCase = false;
  let names = 0;
  const groups: { start: number; inner: number; atomic: boolean; ignoresCase: boolean }[] = [];
  const atomic = (pattern: string) => {
    // A name would change the numbers of other groups.
    if (/\\(?:[1-9]|k)/.test(source)) throw new SyntaxError("Atomic groups beside references to groups");
    if (++names > maxAtomic) throw new SyntaxError(`More than ${maxAtomic} atomic groups`);
    return `(?:(?=(?<_${names}>${pattern}))\\k<_${names}>)`;
  };
  const add = (text: string) => {
    atom = out.length;
    out += text;
  };
  let last = "";
  for (let i = 0; i < source.length; ) {
    const character = partAt("character", source, i)!;
    const quantifier = partAt("quantifier", source, i);
    const open = partAt("open", source, i);
    if (character === "\\") {
      const escaped = partAt("escape", source, i) ?? character;
      if (ignoresCase && !/^\\(?:[rntsSdD]|[^\p{L}\p{N}])$/u.test(escaped)) {
        throw new SyntaxError(`${escaped} where case is ignored`);
      }
      add(escaped);
      i += escaped.length;
    } else if (character === "[") {
      const end = endOfClass(source, i);
      const whole = source.slice(i, end);
      add(ignoresCase ? withBothCases(whole) : whole);
      i = end;
    } else if (open !== undefined) {
      const isAtomic = open === "(?>";
      groups.push({ start: out.length, inner: out.length + open.length, atomic: isAtomic, ignoresCase });
      ignoresCase ||= open === "(?i:";
      add(open === "(?i:" ? "(?:" : open);
      if (open === "(?i:") groups.at(-1)!.inner = out.length;
      i += open.length;
    } else if (character === ")") {
      const group = groups.pop();
      if (group === undefined) throw new SyntaxError("A group is not opened");
      const inner = out.slice(group.inner);
      out = group.atomic ? out.slice(0, group.start) + atomic(inner) : `${out})`;
      atom = group.start;
      ignoresCase = group.ignoresCase;
      i++;
    } else if (quantifier !== undefined) {
      // After braces, a plus repeats what they repeat.
      const possessive = /^[^{]\+$/.test(quantifier);
      const kept = possessive ? quantifier.slice(0, 1) : quantifier;
      out = possessive ? out.slice(0, atom) + atomic(out.slice(atom) + kept) : out + kept;
      i += quantifier.length;
    } else {
      if (ignoresCase && ligatures.has((last + character).toLowerCase())) {
        throw new SyntaxError(`${last}${character} where case is ignored`);
      }
      add(ignoresCase ? bothCases(character) : character);
      i += character.length;
    }
    last = character;
  }
  return out;
}

/** Letters that are one character in another case: `ss` is ß. */
const ligatures: ReadonlySet<string> = new Set(["ss", "st", "ff", "fi", "fl"]);

/** Characters that differ from ASCII letters in their case only, ſ and the Kelvin sign among them. */
function casesOf(letter: string): string {
  const lower = letter.toLowerCase();
  return lower + lower.toUpperCase() + (lower === "s" ? "\u017f" : lower === "k" ? "\u212a" : "");
}

function bothCases(character: string): string {
  if (character > "\x7f") throw new SyntaxError(`${character} where case is ignored`);
  return /[A-Za-z]/.test(character) ? `[${casesOf(character)}]` : character;
}

/** A class of ASCII characters with those of the other case. */
function withBothCases(whole: string): string {
  if (!/^\[\^?[ -Z^-~]+\]$/.test(whole) || whole.includes("&&")) {
    throw new SyntaxError(`${whole} where case is ignored`);
  }
  const compiled = new RegExp(whole, "u");
  const isIn = (letter: string) => compiled.test(letter) !== whole.startsWith("[^");
  const letters = Array.from("abcdefghijklmnopqrstuvwxyz", casesOf);
  const added = letters.filter((cases) => [...cases].some(isIn));
  return `${whole.slice(0, -1).replace(/-$/, "\\-")}${added.join("")}]`;
}

function endOfClass(source: string, start: number): number {
  for (let i = start, depth = 0; i < source.length; ) {
    const step = partAt("escape", source, i)?.length ?? 1;
    if (source[i] === "[") {
      depth++;
      i += source[i + 1] === "^" ? 2 : 1;
      if (source[i] === "]") i++; // the first character is itself
    } else if (source[i] === "]") {
      depth--;
      i++;
      if (depth === 0) return i;
    } else i += step;
  }
  throw new SyntaxError("A class is not closed");
}
