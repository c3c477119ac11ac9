/**
 * Tokenizers for small closed languages whose vocabulary consists of whole phrases. A model that
 * reads the same long texts often, such as instructions, then reads each as one token.
 *
 * The result is an ordinary byte-level tokenizer.json: its pre-tokenizer splits text into phrases,
 * and its model takes each as a whole.
 */

import { escapePattern } from "../base/escape-pattern.ts";
import { bytePairModel, tokenOfText } from "./bpe.ts";
import type { TokenizerParts } from "./tokenizer.ts";

const roles = ["system", "user", "assistant", "tool"];
const endOfTurn = "<|end|>";

/**
 * Builds a tokenizer. The longest phrase that matches is taken. Text outside of phrases is omitted.
 *
 * @param phrases at least one character each; duplicates are ignored
 */
export function phraseTokenizer(phrases: readonly string[]): TokenizerParts {
  const longestFirst = [...new Set(phrases)].sort((a, b) => b.length - a.length || (a < b ? -1 : 1));
  const control = [...roles.map((role) => `<|${role}|>`), endOfTurn];
  const escaped = longestFirst.map(escapePattern);
  return {
    json: {
      version: "1.0",
      truncation: null,
      padding: null,
      added_tokens: control.map((content, i) => ({
        id: longestFirst.length + i,
        content,
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
        special: true,
      })),
      normalizer: null,
      pre_tokenizer: {
        type: "Sequence",
        pretokenizers: [
          {
            type: "Split",
            pattern: { Regex: escaped.join("|") },
            behavior: "Isolated",
            invert: false,
          },
          { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
        ],
      },
      post_processor: null,
      decoder: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
      model: bytePairModel({
        vocab: Object.fromEntries(longestFirst.map((phrase, id) => [tokenOfText(phrase), id] as const)),
        merges: [],
        ignore_merges: true,
      }),
    },
    config: { eos_token: endOfTurn },
    chatTemplate:
      "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}" +
      "{% if add_generation_prompt %}<|assistant|>{% endif %}",
  };
}
