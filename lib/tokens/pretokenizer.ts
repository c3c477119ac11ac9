/**
 * Pre-tokenization: splits text into words, numbers and whitespace, which BPE never merges across.
 * Implements the `pre_tokenizer` part of tokenizer.json as the Rust library `tokenizers` does, with
 * Unicode's definition of spaces and digits instead of JavaScript's.
 */

import { Tokenizer as HuggingFaceTokenizer } from "@huggingface/tokenizers";
import { NlacError } from "../base/errors.ts";
import { isObject, shown } from "../base/validation.ts";
import type { Place } from "./normalizer.ts";

/**
 * Pattern of newer pre-tokenizers: numbers in groups of at most `digits`, newlines separate.
 * `marks`: combining marks belong to words, as in Qwen3.5.
 */
export function modernPattern(digits: number, marks = false): string {
  return [
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    `[^\\r\\n\\p{L}\\p{N}]?${marks ? "[\\p{L}\\p{M}]" : "\\p{L}"}+`,
    digits === 1 ? "\\p{N}" : `\\p{N}{1,${digits}}`,
    ` ?[^\\s\\p{L}${marks ? "\\p{M}" : ""}\\p{N}]+[\\r\\n]*`,
    "\\s*[\\r\\n]+",
    "\\s+(?!\\S)",
    "\\s+",
  ].join("|");
}

const contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
const upper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]";
const lower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
/** Pattern of gpt-oss (o200k): words are also cut where an upper-case letter follows a lower-case one. */
export const o200kPattern = [
  `[^\\r\\n\\p{L}\\p{N}]?${upper}*${lower}+${contractions}`,
  `[^\\r\\n\\p{L}\\p{N}]?${upper}+${lower}*${contractions}`,
  "\\p{N}{1,3}",
  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*",
  "\\s*[\\r\\n]+",
  "\\s+(?!\\S)",
  "\\s+",
].join("|");

/** Pieces of a text in order. `place`: where the text stands; default: at the start of all text. */
export type PreTokenizer = (text: string, place?: Place) => string[];

const gpt2Words =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

/** Throws ERR_MODEL_FORMAT for an unknown rule. */
export function compilePreTokenizer(rule: unknown): PreTokenizer {
  const steps = flatten(rule).map(compileStep);
  return (text, place = "start") => {
    let pieces = [text];
    for (const step of steps) {
      pieces = pieces.flatMap((piece, i) => step(piece, i === 0 ? place : "after-token"));
    }
    return pieces;
  };
}

/** Whether words are cut of bytes. */
export function worksOnBytes(rule: unknown): boolean {
  return flatten(rule).some(({ type }) => type === "ByteLevel");
}

/** Whether a rule puts a space before pieces. */
export function prefixesSpace(rule: unknown): boolean {
  return flatten(rule).some((step) =>
    step.type === "Metaspace" ? schemeOf(step) !== "never" : step.add_prefix_space === true,
  );
}

function flatten(rule: unknown): Record<string, unknown>[] {
  if (rule === null || rule === undefined) return [];
  const step = isObject(rule) ? rule : undefined;
  if (step !== undefined && step.type !== "Sequence") return [step];
  if (step === undefined || !Array.isArray(step.pretokenizers)) {
    throw new NlacError("ERR_MODEL_FORMAT", `Unsupported pre_tokenizer: ${shown(rule)}.`);
  }
  return step.pretokenizers.flatMap(flatten);
}

/** Patterns of published tokenizers, which take linear time. */
const linearPatterns: ReadonlySet<string> = new Set([
  modernPattern(1),
  modernPattern(3),
  modernPattern(1, true),
  o200kPattern,
]);

/**
 * Whether a rule has a pattern of unknown cost. One without repetitions takes linear time.
 */
export function mayBacktrack(rule: unknown): boolean {
  if (typeof rule !== "object" || rule === null) return false;
  return Object.entries(rule).some(([key, value]) =>
    key === "Regex"
      ? !linearPatterns.has(String(value)) && /[*+?{]/.test(String(value).replace(/\\./gs, ""))
      : mayBacktrack(value),
  );
}

function compileStep(step: Record<string, unknown>): PreTokenizer {
  switch (step.type) {
    case "ByteLevel": {
      const prefix = step.add_prefix_space === true;
      const words = step.use_regex !== false;
      return (text, place) => {
        const prefixed = prefix && place !== "inside" && !text.startsWith(" ") ? ` ${text}` : text;
        return words ? (prefixed.match(gpt2Words) ?? []) : [prefixed];
      };
    }
    case "Digits": {
      const digits = step.individual_digits === true ? /\p{N}/gu : /\p{N}+/gu;
      return (text) => isolate(text, digits);
    }
    case "Split":
      return compileSplit(step);
    case "Metaspace":
      return compileMetaspace(step);
    default:
      throw new NlacError("ERR_MODEL_FORMAT", `Unsupported pre_tokenizer: ${JSON.stringify(step.type)}.`);
  }
}

/** Which pieces start with a space: all, the first of a text, or none. */
function schemeOf(step: Record<string, unknown>): "always" | "first" | "never" {
  const scheme = step.prepend_scheme ?? (step.add_prefix_space === false ? "never" : "always");
  if (scheme === "always" || scheme === "first" || scheme === "never") return scheme;
  throw new NlacError("ERR_MODEL_FORMAT", `Unsupported prepend_scheme of a Metaspace: ${shown(scheme)}.`);
}

/** Replaces spaces by a character. */
function compileMetaspace(step: Record<string, unknown>): PreTokenizer {
  const mark = step.replacement;
  if (typeof mark !== "string" || Array.from(mark).length !== 1) {
    throw new NlacError("ERR_MODEL_FORMAT", `Unsupported replacement of a Metaspace: ${shown(mark)}.`);
  }
  const scheme = schemeOf(step);
  const cuts = step.split !== false;
  const pattern = new RegExp(mark.replace(/[\\^$.*+?()[\]{}|/]/, "\\$&"), "gu");
  return (text, place) => {
    let marked = text.replaceAll(" ", () => mark);
    const prefixed = scheme === "always" ? place !== "inside" : scheme === "first" && place === "start";
    if (prefixed && marked !== "" && !marked.startsWith(mark)) marked = mark + marked;
    return cuts ? merged(marked, pattern, "next") : [marked];
  };
}

function compileSplit(step: Record<string, unknown>): PreTokenizer {
  const compiled = compilePattern(step);
  const pattern = foldUnicodeCase(compiled, step.pattern);
  const invert = step.invert === true;
  if (!invert && (step.behavior === "MergedWithPrevious" || step.behavior === "MergedWithNext")) {
    const side = step.behavior === "MergedWithNext" ? "next" : "previous";
    return (text) => merged(text, pattern, side);
  }
  switch (step.behavior) {
    case "Isolated":
      return (text) => isolate(text, pattern);
    case "Removed":
      return (text) => isolate(text, pattern, invert ? "matches" : "gaps");
    default:
      throw new NlacError(
        "ERR_MODEL_FORMAT",
        `Unsupported behavior of a Split pre_tokenizer: ${JSON.stringify(step.behavior)}${invert ? ", inverted" : ""}.`,
      );
  }
}

/** Converts an Oniguruma regular expression to JavaScript. */
function compilePattern(step: Record<string, unknown>): RegExp {
  try {
    const { pre_tokenizer } = new HuggingFaceTokenizer(
      {
        added_tokens: [],
        normalizer: null,
        pre_tokenizer: step,
        post_processor: null,
        decoder: null,
        model: { type: "BPE", vocab: {}, merges: [] },
      },
      {},
    );
    const { pattern } = pre_tokenizer as unknown as { pattern?: RegExp | null };
    if (pattern instanceof RegExp) return pattern;
  } catch (error) {
    throw new NlacError("ERR_MODEL_FORMAT", `Unsupported pattern: ${JSON.stringify(step.pattern)}.`, {
      cause: error,
    });
  }
  throw new NlacError("ERR_MODEL_FORMAT", `Unsupported pattern: ${JSON.stringify(step.pattern)}.`);
}

/** The converter folds only ASCII case; Oniguruma also matches ſ as s and the Kelvin sign as k. */
function foldUnicodeCase(compiled: RegExp, original: unknown): RegExp {
  const ignoresCase = (original as { Regex?: string }).Regex?.includes("(?i") ?? false;
  if (!ignoresCase) return compiled;
  const source = compiled.source.replaceAll("[sS]", "[sS\u017f]").replaceAll("[kK]", "[kK\u212a]");
  return new RegExp(source, compiled.flags);
}

/** Matches and the text between them, or only one of these. */
function isolate(text: string, pattern: RegExp, kept: "both" | "matches" | "gaps" = "both"): string[] {
  const pieces: string[] = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    if (match[0] === "") continue;
    if (match.index > end && kept !== "matches") pieces.push(text.slice(end, match.index));
    if (kept !== "gaps") pieces.push(match[0]);
    end = match.index + match[0].length;
  }
  if (end < text.length && kept !== "matches") pieces.push(text.slice(end));
  return pieces;
}

/**
 * The text between matches, with each match at the end of the piece before it, or at the start of
 * the next.
 */
function merged(text: string, pattern: RegExp, side: "previous" | "next"): string[] {
  const starts: number[] = [0];
  let end = -1;
  for (const match of text.matchAll(pattern)) {
    if (match[0] === "") continue;
    const [from, to] = [match.index, match.index + match[0].length];
    // Only one of adjacent matches is merged: the first with the previous piece, the last with the
    // next.
    if (side === "next" || from === end) starts.push(from);
    if (side === "previous") starts.push(to);
    end = to;
  }
  const cuts = [...new Set(starts)].filter((start) => start < text.length);
  return cuts.map((start, i) => text.slice(start, cuts[i + 1]));
}
