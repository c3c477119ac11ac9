/**
 * Rebuilds the two files of a Hugging Face tokenizer from GGUF metadata. For a byte-level BPE the
 * metadata has vocabulary and merges, but only the name of the pre-tokenizer; for a SentencePiece
 * model, vocabulary and scores; for Gemma 4's BPE of characters, vocabulary and merges.
 */

import { NlacError } from "../base/errors.ts";
import { bytePairModel } from "./bpe.ts";
import { type AddedToken, type TokenizerConfig, type TokenizerJson, withToolTemplate } from "./format.ts";
import { modernPattern, o200kPattern } from "./pretokenizer.ts";
import { mergesOfScores, sentencePieceJson } from "./sentencepiece.ts";

/** Token types in GGUF. 5 is unused, 6 a byte. */
const normalToken = 1;
const unknownToken = 2;
const controlToken = 3;
const userDefinedToken = 4;

const byteLevel = (words: boolean) => ({
  type: "ByteLevel",
  add_prefix_space: false,
  trim_offsets: true,
  use_regex: words,
});

const splitBy = (pattern: string) => ({
  type: "Sequence",
  pretokenizers: [
    { type: "Split", pattern: { Regex: pattern }, behavior: "Isolated", invert: false },
    byteLevel(false),
  ],
});

interface Conventions {
  preTokenizer: unknown;
  normalizer: unknown;
  ignoreMerges: boolean;
}

const gpt2: Conventions = { preTokenizer: byteLevel(true), normalizer: null, ignoreMerges: false };
const qwen2: Conventions = {
  preTokenizer: splitBy(modernPattern(1)),
  normalizer: { type: "NFC" },
  ignoreMerges: false,
};
const qwen35: Conventions = { ...qwen2, preTokenizer: splitBy(modernPattern(1, true)) };
const llama3: Conventions = {
  preTokenizer: splitBy(modernPattern(3)),
  normalizer: null,
  ignoreMerges: true,
};
const o200k: Conventions = { ...llama3, preTokenizer: splitBy(o200kPattern) };
const smollm: Conventions = {
  preTokenizer: {
    type: "Sequence",
    pretokenizers: [{ type: "Digits", individual_digits: true }, byteLevel(true)],
  },
  normalizer: null,
  ignoreMerges: false,
};

/** By the value of tokenizer.ggml.pre. */
const conventions: ReadonlyMap<string, Conventions> = new Map([
  ["smollm", smollm],
  ["qwen2", qwen2],
  ["qwen35", qwen35],
  ["deepseek-r1-qwen", qwen2],
  ["llama-bpe", llama3],
  ["llama3", llama3],
  ["llama-v3", llama3],
  ["gpt-4o", o200k], // gpt-oss
  ["gpt-2", gpt2],
  ["default", gpt2],
]);

/**
 * The tokenizer that `metadata` describes.
 *
 * @param metadata GGUF keys and values, arrays as plain or typed arrays
 * @throws NlacError ERR_MODEL_FORMAT for a missing key or a tokenizer of another kind
 */
export function tokenizerFromGguf(
  metadata: Record<string, unknown>,
): GgufTokenizer & { config: TokenizerConfig; eosTokenIds: number[] } {
  const kind = metadata["tokenizer.ggml.model"];
  if (kind !== "gpt2" && kind !== "llama" && kind !== "gemma4") {
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `The GGUF file's tokenizer is of the kind ${JSON.stringify(kind) ?? "(none)"}; supported are "gpt2" ` +
        '(byte-level BPE), "llama" (SentencePiece) and "gemma4" (BPE of characters).',
    );
  }
  const vocabulary = readVocabulary(metadata);
  const common = readConfig(metadata, vocabulary.tokens);
  if (kind === "gpt2") return { ...common, json: byteLevelJson(metadata, vocabulary) };
  if (kind === "gemma4") return { ...common, json: charactersJson(metadata, vocabulary) };
  return { ...common, ...readSentencePiece(metadata, vocabulary) };
}

interface GgufTokenizer {
  json: TokenizerJson;
  mergeRanks?: readonly number[];
}

interface Vocabulary {
  tokens: readonly string[];
  kinds: readonly number[];
  vocab: Record<string, number>;
  added: AddedToken[];
}

function byteLevelJson(metadata: Record<string, unknown>, { vocab, added }: Vocabulary): TokenizerJson {
  const pre = metadata["tokenizer.ggml.pre"] ?? "default";
  const convention = conventions.get(String(pre));
  if (convention === undefined) {
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `The GGUF file's pre-tokenizer is ${JSON.stringify(pre)}; supported are ${[...conventions.keys()].join(", ")}.`,
    );
  }
  const merges = texts(metadata, "tokenizer.ggml.merges");
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: added,
    normalizer: convention.normalizer,
    pre_tokenizer: convention.preTokenizer,
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: bytePairModel({ vocab, merges: [...merges], ignore_merges: convention.ignoreMerges }),
  };
}

/** A SentencePiece model of the kind "BPE", as llama.cpp applies it. */
function readSentencePiece(
  metadata: Record<string, unknown>,
  { tokens, kinds, vocab, added }: Vocabulary,
): GgufTokenizer {
  const scores = list<number>(metadata, "tokenizer.ggml.scores");
  if (
    scores.length !== tokens.length ||
    !scores.every((score) => typeof score === "number" && !Number.isNaN(score))
  ) {
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `The GGUF file does not have a score for each of ${tokens.length} tokens.`,
    );
  }
  const pieces = tokens.flatMap((token, id) =>
    kinds[id] === normalToken ? [{ token, score: scores[id]! }] : [],
  );
  const { merges, ranks } = mergesOfScores(pieces);
  const json = sentencePieceJson({
    vocab,
    merges,
    added,
    unknown: tokens[kinds.indexOf(unknownToken)],
    // Both defaults are those of llama.cpp.
    prefix: metadata["tokenizer.ggml.add_space_prefix"] !== false,
  });
  return { json, mergeRanks: ranks };
}

/** BPE of characters with the merges of the model's tokenizer.json. */
function charactersJson(
  metadata: Record<string, unknown>,
  { tokens, kinds, vocab, added }: Vocabulary,
): TokenizerJson {
  const merges = texts(metadata, "tokenizer.ggml.merges").map((merge): [string, string] => {
    const space = merge.indexOf(" ", 1); // a part is no space, which the vocabulary writes as a mark
    if (space < 0)
      throw new NlacError(
        "ERR_MODEL_FORMAT",
        `The GGUF file's merge ${JSON.stringify(merge)} is not a pair.`,
      );
    return [merge.slice(0, space), merge.slice(space + 1)];
  });
  const unknown = tokens[kinds.indexOf(unknownToken)];
  const prefix = metadata["tokenizer.ggml.add_space_prefix"] === true;
  return sentencePieceJson({ vocab, merges, added, unknown, prefix });
}

function readVocabulary(metadata: Record<string, unknown>): Vocabulary {
  const tokens = texts(metadata, "tokenizer.ggml.tokens");
  const kinds = list<number>(metadata, "tokenizer.ggml.token_type");
  if (kinds.length !== tokens.length) {
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `The GGUF file has ${tokens.length} tokens but ${kinds.length} token types.`,
    );
  }

  const vocab: Record<string, number> = Object.create(null);
  const added: AddedToken[] = [];
  for (const [id, content] of tokens.entries()) {
    if (vocab[content] !== undefined) {
      throw new NlacError(
        "ERR_MODEL_FORMAT",
        `Token ${JSON.stringify(content)} occurs twice in the GGUF file.`,
      );
    }
    vocab[content] = id;
    const kind = kinds[id];
    if (kind === controlToken || kind === unknownToken || kind === userDefinedToken) {
      added.push({
        id,
        content,
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
        special: kind !== userDefinedToken,
      });
    }
  }

  return { tokens, kinds, vocab, added };
}

function readConfig(
  metadata: Record<string, unknown>,
  tokens: readonly string[],
): { config: TokenizerConfig; eosTokenIds: number[] } {
  const tokenOf = (key: string): string | undefined => {
    const id = metadata[`tokenizer.ggml.${key}`];
    return id === undefined ? undefined : tokens[Number(id)];
  };
  const config: TokenizerConfig = {
    tokenizer_class: "PreTrainedTokenizerFast",
    add_bos_token: metadata["tokenizer.ggml.add_bos_token"] === true,
    add_prefix_space: false,
    clean_up_tokenization_spaces: false,
  };
  for (const [name, key] of [
    ["bos_token", "bos_token_id"],
    ["eos_token", "eos_token_id"],
    ["unk_token", "unknown_token_id"],
    ["pad_token", "padding_token_id"],
  ] as const) {
    const token = tokenOf(key);
    if (token !== undefined) config[name] = token;
  }
  const templateAt = (key: string) => {
    const value = metadata[key];
    return typeof value === "string" ? value : undefined;
  };
  const template = withToolTemplate(
    templateAt("tokenizer.chat_template"),
    templateAt("tokenizer.chat_template.tool_use"),
  );
  if (template !== undefined) config.chat_template = template;
  const contextLength = metadata[`${String(metadata["general.architecture"])}.context_length`];
  if (contextLength !== undefined) config.model_max_length = Number(contextLength);

  const eosTokenIds = ["eos_token_id", "eot_token_id", "eom_token_id"]
    .map((key) => metadata[`tokenizer.ggml.${key}`])
    .filter((id) => id !== undefined)
    .map(Number);

  return { config, eosTokenIds: [...new Set(eosTokenIds)] };
}

function texts(metadata: Record<string, unknown>, key: string): readonly string[] {
  const values = list<string>(metadata, key);
  if (values.every((text) => typeof text === "string")) return values;
  throw new NlacError("ERR_MODEL_FORMAT", `The GGUF file's ${key} are not texts.`);
}

function list<T>(metadata: Record<string, unknown>, key: string): readonly T[] {
  const value = metadata[key];
  if (Array.isArray(value)) return value as T[];
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) return Array.from(value as never) as T[];
  throw new NlacError("ERR_MODEL_FORMAT", `The GGUF file has no list ${key}.`);
}
