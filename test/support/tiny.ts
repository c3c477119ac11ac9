/** Models small enough to make in a test: a byte-level tokenizer and random weights. */

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Learner } from "../../lib/learner/learner.ts";
import type { CreateOptions } from "../../lib/learner/options.ts";
import { testDevice } from "./device.ts";
import { byteTokenizer, endOfTurn } from "./scripted-model.ts";

/** 258 ids have text; the rows after them are padding, as many models have. */
export const tinyConfig = {
  architectures: ["LlamaForCausalLM"],
  model_type: "llama",
  vocab_size: 264,
  hidden_size: 32,
  intermediate_size: 64,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 256,
  rms_norm_eps: 1e-5,
  rope_theta: 10000,
  hidden_act: "silu",
  tie_word_embeddings: false,
  eos_token_id: 257,
};

/** With room for `endless`. */
export const longConfig = { ...tinyConfig, max_position_embeddings: 100_000 };

/** A request that ends when it is aborted: what it waits for happens first, on a slow machine too. */
export const endless = { tokens: [1], maxNewTokens: 90_000, forbidden: [endOfTurn] };

export function tinyLearner(options: CreateOptions = {}, config: object = tinyConfig): Promise<Learner> {
  const usual = { dtype: "float32", device: testDevice, tokenizer: byteTokenizer() } as const;
  return Learner.create(config, { ...usual, ...options });
}

/** Runs `body` with a new directory that is removed afterwards. */
export async function inDirectory<T>(body: (directory: string) => Promise<T> | T): Promise<T> {
  const directory = mkdtempSync(join(tmpdir(), "nlac-"));
  try {
    return await body(directory);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** log softmax of one row of logits, in float64. */
export function logSoftmax(logits: Float32Array, row: number, vocab: number, temperature = 1): Float64Array {
  const values = Float64Array.from(logits.subarray(row * vocab, (row + 1) * vocab), (x) => x / temperature);
  const largest = values.reduce((a, b) => Math.max(a, b));
  const total = Math.log(values.reduce((sum, x) => sum + Math.exp(x - largest), 0)) + largest;
  return values.map((x) => x - total);
}
