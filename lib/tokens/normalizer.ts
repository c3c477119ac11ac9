/**
 * Normalization: what a tokenizer changes in a text before it cuts it. Implements the `normalizer`
 * part of tokenizer.json as the Rust library `tokenizers` does.
 */

import { Tokenizer as HuggingFaceTokenizer } from "@huggingface/tokenizers";
import { NlacError } from "../base/errors.ts";
import { isObject, shown } from "../base/validation.ts";

/**
 * Where a piece of text stands: at the start of the whole text, after an added token, or after
 * other text.
 */
export type Place = "start" | "after-token" | "inside";

/** The normalized text. */
export type Normalizer = (text: string, place: Place) => string;

/** Longest text that a normalizer may put before each piece. */
const maxPrefix = 16;

/** Throws ERR_MODEL_FORMAT for an unknown rule. */
export function compileNormalizer(rule: unknown): Normalizer {
  const steps = flatten(rule).map(compileStep);
  return (text, place) => steps.reduce((changed, step) => step(changed, place), text);
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
  const { type, prepend, pattern, content } = (isObject(step) ? step : {}) as Record<string, unknown>;
  if (type === "NFC") return (text) => text.normalize("NFC");
  if (type === "Prepend" && typeof prepend === "string" && prepend.length <= maxPrefix) {
    return (text, place) => (text === "" || place === "inside" ? text : prepend + text);
  }
  const from = isObject(pattern) ? pattern.String : undefined;
  if (type === "Replace" && typeof from === "string" && from !== "" && typeof content === "string") {
    // One character at most, so that a text does not grow.
    if (Array.from(content).length <= 1) return (text) => text.replaceAll(from, () => content);
  }
  return otherStep(step);
}

/** The steps of other tokenizers. */
function otherStep(rule: unknown): Normalizer {
  try {
    const { normalizer } = new HuggingFaceTokenizer(
      {
        added_tokens: [],
        normalizer: rule,
        pre_tokenizer: null,
        post_processor: null,
        decoder: null,
        model: { type: "BPE", vocab: {}, merges: [] },
      } as never,
      {},
    );
    if (normalizer !== null) return (text) => normalizer(text);
  } catch (error) {
    throw new NlacError("ERR_MODEL_FORMAT", `Unsupported normalizer: ${JSON.stringify(rule)}.`, {
      cause: error,
    });
  }
  throw new NlacError("ERR_MODEL_FORMAT", `Unsupported normalizer: ${JSON.stringify(rule)}.`);
}
