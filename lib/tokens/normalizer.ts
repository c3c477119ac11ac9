/**
 * Normalization: what a tokenizer changes in a text before it cuts it. Implements the `normalizer`
 * part of tokenizer.json as the Rust library `tokenizers` does.
 */

import { NlacError } from "../base/errors.ts";
import { isObject, shown } from "../base/validation.ts";
import { maxSteps } from "./format.ts";
import { compilePattern, matchesOf } from "./pattern.ts";
import { spacesAfter, spacesBefore } from "./spaces.ts";

/**
 * Where a piece of text stands: at the start of the whole text, after an added token, or after
 * other text.
 */
export type Place = "start" | "after-token" | "inside";

/** The normalized text. */
export type Normalizer = (text: string, place: Place) => string;

/** Longest text that a normalizer may put before each piece, or in place of a match. */
const maxAdded = 16;
/** How many times as long a text may become. NFKC makes some characters 18. */
const maxGrowth = 64;

/**
 * Throws ERR_MODEL_FORMAT for an unknown rule; the normalizer throws ERR_TOKENIZER if a text becomes
 * too long.
 */
export function compileNormalizer(rule: unknown): Normalizer {
  const rules = flatten(rule);
  if (rules.length > maxSteps)
    throw new NlacError("ERR_MODEL_FORMAT", `Unsupported normalizer: it has ${rules.length} steps.`);
  const steps = rules.map(compileStep);
  return (text, place) => {
    let changed = text;
    for (const step of steps) {
      changed = step(changed, place);
      if (changed.length > maxGrowth * (text.length + maxAdded))
        throw new NlacError(
          "ERR_TOKENIZER",
          `The tokenizer's normalizer makes ${changed.length} characters of ${text.length}.`,
        );
    }
    return changed;
  };
}

/** Whether a rule puts a text before each piece. */
export function prepends(rule: unknown): boolean {
  return flatten(rule).some((step) => isObject(step) && step.type === "Prepend");
}

function flatten(rule: unknown): unknown[] {
  if (rule === null || rule === undefined) return [];
  if (!isObject(rule) || rule.type !== "Sequence") return [rule];
  if (Array.isArray(rule.normalizers)) return rule.normalizers.flatMap(flatten);
  throw new NlacError("ERR_MODEL_FORMAT", `Unsupported normalizer: ${shown(rule)}.`);
}

function compileStep(step: unknown): Normalizer {
  const rule = (isObject(step) ? step : {}) as Record<string, unknown>;
  const { type, prepend, pattern, content } = rule;
  switch (type) {
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD":
      return (text) => text.normalize(type);
    case "Lowercase":
      return lowercase;
    case "StripAccents":
      return (text) => text.replace(/\p{M}/gu, "");
    case "Strip": {
      const { strip_left: left, strip_right: right } = rule;
      return (text) => {
        const start = left === true ? spacesAfter(text, 0) : 0;
        return text.slice(start, right === true ? spacesBefore(text, text.length, start) : text.length);
      };
    }
    case "BertNormalizer":
      return compileBert(rule);
    case "Prepend":
      if (typeof prepend !== "string" || prepend.length > maxAdded) break;
      return (text, place) => (text === "" || place === "inside" ? text : prepend + text);
    case "Replace":
      if (typeof content !== "string" || content.length > maxAdded) break;
      return compileReplace(pattern, content);
  }
  throw new NlacError("ERR_MODEL_FORMAT", `Unsupported normalizer: ${JSON.stringify(step)}.`);
}

/** Each character by its own: no sigma is a final one. */
function lowercase(text: string): string {
  return text.replaceAll("\u03a3", "\u03c3").toLowerCase();
}

function compileReplace(pattern: unknown, content: string): Normalizer {
  const from = isObject(pattern) ? pattern.String : undefined;
  if (typeof from === "string" && from !== "") return (text) => text.replaceAll(from, () => content);
  const compiled = compilePattern(pattern);
  return (text) => {
    if (text === "") return "";
    let replaced = "";
    let end = 0;
    for (const match of matchesOf(text, compiled)) {
      replaced += text.slice(end, match.start) + content;
      end = match.end;
    }
    return replaced + text.slice(end);
  };
}

const controls = /[^\t\n\r\P{Cc}]|[\0\ufffd\p{Cf}\p{Co}]/gu;
/** The characters that BERT takes for Chinese. */
const chinese =
  /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;

function compileBert(rule: Record<string, unknown>): Normalizer {
  const { clean_text: cleans, handle_chinese_chars: spaces, strip_accents: strips, lowercase: lowers } = rule;
  return (text) => {
    let changed = text;
    if (cleans === true) changed = changed.replace(controls, "").replace(/\p{White_Space}/gu, " ");
    if (spaces === true) changed = changed.replace(chinese, " $& ");
    if (strips === true || (lowers === true && strips !== false)) {
      changed = changed.normalize("NFD").replace(/\p{Mn}/gu, "");
    }
    return lowers === true ? lowercase(changed) : changed;
  };
}
