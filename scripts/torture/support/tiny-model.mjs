// A recipe's model of a few thousand parameters, whose checkpoints are small.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const shipped = fileURLToPath(new URL("../../../models/errands-base", import.meta.url));
const json = (name) => JSON.parse(readFileSync(join(shipped, name), "utf8"));
const { vocab_size, eos_token_id } = json("config.json");

export const tinyModel = {
  config: {
    architectures: ["LlamaForCausalLM"],
    model_type: "llama",
    hidden_size: 16,
    intermediate_size: 32,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-5,
    rope_theta: 10000,
    hidden_act: "silu",
    tie_word_embeddings: false,
    vocab_size,
    eos_token_id,
  },
  tokenizer: { json: json("tokenizer.json"), config: json("tokenizer_config.json") },
};
