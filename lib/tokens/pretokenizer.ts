/**
 * Pre-tokenization: splits text into words, numbers and whitespace, which BPE never merges across.
 * Implements the `pre_tokenizer` part of tokenizer.json as the Rust library `tokenizers` does, with
 * Unicode's definition of spaces and digits instead of JavaScript's.
 */

import { NlacError } from "../base/errors.ts";
import { escapePattern } from "../base/escape-pattern.ts";
import { isObject, shown } from "../base/validation.ts";
import { maxSteps } from "./format.ts";
import type { Place } from "./normalizer.ts";
import { compilePattern, matchesOf } from "./pattern.ts";

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
  const rules = flatten(rule);
  if (rules.length > maxSteps)
    throw new NlacError("ERR_MODEL_FORMAT", `Unsupported pre_tokenizer: it has ${rules.length} steps.`);
  if (rules.slice(0, -1).some(({ type }) => type === "ByteLevel")) {
    // It would cut the spelling of the bytes.
    throw new NlacError("ERR_MODEL_FORMAT", "Unsupported pre_tokenizer: a step after ByteLevel.");
  }
  const steps = rules.map(compileStep);
  return (text, place = "start") => {
    let pieces = [text];
    for (const step of steps) {
      pieces = pieces.flatMap((piece, i) =>
        piece === "" ? [piece] : step(piece, i === 0 ? place : "after-token"),
      );
    }
    return pieces.filter((piece) => piece !== "");
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
      return (text) => cut(text, digits, "Isolated");
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
  const pattern = new RegExp(escapePattern(mark), "gu");
  return (text, place) => {
    let marked = text.replaceAll(" ", () => mark);
    const prefixed = scheme === "always" ? place !== "inside" : scheme === "first" && place === "start";
    if (prefixed && marked !== "" && !marked.startsWith(mark)) marked = mark + marked;
    return cuts ? cut(marked, pattern, "MergedWithNext") : [marked];
  };
}

/** What a Split does with matches and the text between them. */
const behaviors = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"] as const;
type Behavior = (typeof behaviors)[number];

function compileSplit(step: Record<string, unknown>): PreTokenizer {
  const pattern = compilePattern(step.pattern);
  const invert = step.invert === true;
  const behavior = behaviors.find((behavior) => behavior === step.behavior);
  if (behavior !== undefined) return (text) => cut(text, pattern, behavior, invert);
  throw new NlacError(
    "ERR_MODEL_FORMAT",
    `Unsupported behavior of a Split pre_tokenizer: ${JSON.stringify(step.behavior)}.`,
  );
}

/**
 * Cuts a text at the matches of a pattern, also empty ones. With `invert`, the text between the
 * matches is handled as a match, and a match as text. Removed matches are empty pieces. Of adjacent
 * matches only the first is merged with the previous piece, or the last with the next. Contiguous:
 * adjacent matches are one piece.
 */
function cut(text: string, pattern: RegExp, behavior: Behavior, invert = false): string[] {
  const parts: { text: string; isMatch: boolean }[] = [];
  let end = 0;
  for (const match of matchesOf(text, pattern)) {
    if (match.start > end) parts.push({ text: text.slice(end, match.start), isMatch: invert });
    parts.push({ text: text.slice(match.start, match.end), isMatch: !invert });
    end = match.end;
  }
  if (end < text.length) parts.push({ text: text.slice(end), isMatch: invert });
  if (behavior === "Isolated" || behavior === "Removed")
    return parts
      .filter((part) => part.text !== "")
      .map((part) => (part.isMatch && behavior === "Removed" ? "" : part.text));

  const backwards = behavior === "MergedWithNext";
  if (backwards) parts.reverse();
  const pieces: string[] = [];
  let wasMatch = false;
  for (const { text: part, isMatch } of parts) {
    const joins = behavior === "Contiguous" ? isMatch === wasMatch : isMatch && !wasMatch;
    const last = joins ? pieces.pop() : undefined;
    pieces.push(backwards ? part + (last ?? "") : (last ?? "") + part);
    wasMatch = isMatch;
  }
  if (backwards) pieces.reverse();
  return pieces.filter((piece) => piece !== "");
}
