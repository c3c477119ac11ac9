/**
 * The tokenizers and recorded answers of test/fixtures/tokens; scripts/fixtures/tokens.py made
 * them.
 */

import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import type { TokenizerJson } from "../../lib/tokens/format.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";

const directory = new URL("../fixtures/tokens/", import.meta.url);

export function fixtureText(name: string): string {
  const bytes = readFileSync(new URL(name, directory));
  return (name.endsWith(".gz") ? gunzipSync(bytes) : bytes).toString("utf8");
}

export function fixtureJson<T>(name: string): T {
  return JSON.parse(fixtureText(name)) as T;
}

/** SmolLM2's tokenizer as its GGUF file describes it. */
export function smollm2Metadata(): Record<string, unknown> {
  const { controls, ...metadata } = fixtureJson<Record<string, unknown> & { controls: number }>(
    "smollm2.json.gz",
  );
  const merges = metadata["tokenizer.ggml.merges"] as string[];
  const tokens = [
    ...(metadata["tokenizer.ggml.tokens"] as string[]),
    ...merges.map((merge) => merge.replace(" ", "")),
  ];
  return {
    ...metadata,
    "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.token_type": tokens.map((_, id) => (id < controls ? 3 : 1)),
  };
}

export const tokenizerNames = ["smollm2", "qwen-like", "llama3-like"] as const;
export type TokenizerName = (typeof tokenizerNames)[number];

const made = new Map<TokenizerName, Tokenizer>();

/** A tokenizer with its chat template. Made once. */
export function tokenizerNamed(name: TokenizerName): Tokenizer {
  let tokenizer = made.get(name);
  if (tokenizer === undefined) {
    tokenizer = makeTokenizer(name);
    made.set(name, tokenizer);
  }
  return tokenizer;
}

function makeTokenizer(name: TokenizerName): Tokenizer {
  if (name === "smollm2") return Tokenizer.fromGguf(smollm2Metadata());
  const config =
    name === "qwen-like"
      ? { eos_token: "<|im_end|>", pad_token: "<|endoftext|>" }
      : { bos_token: "<|begin_of_text|>", eos_token: "<|eot_id|>" };
  return new Tokenizer({
    json: fixtureJson<TokenizerJson>(`${name}.json.gz`),
    config,
    chatTemplate: fixtureText(`templates/${name}.jinja`),
  });
}

/**
 * The added tokens of Qwen3's vocabulary, in order of their ids; the last twelve are not control
 * tokens.
 */
export const qwen3AddedTokens = [
  "<|endoftext|>",
  "<|im_start|>",
  "<|im_end|>",
  "<|object_ref_start|>",
  "<|object_ref_end|>",
  "<|box_start|>",
  "<|box_end|>",
  "<|quad_start|>",
  "<|quad_end|>",
  "<|vision_start|>",
  "<|vision_end|>",
  "<|vision_pad|>",
  "<|image_pad|>",
  "<|video_pad|>",
  "<tool_call>",
  "</tool_call>",
  "<|fim_prefix|>",
  "<|fim_middle|>",
  "<|fim_suffix|>",
  "<|fim_pad|>",
  "<|repo_name|>",
  "<|file_sep|>",
  "<tool_response>",
  "</tool_response>",
  "<think>",
  "</think>",
] as const;
