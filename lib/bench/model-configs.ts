/** Configurations with the shapes of real models, for models with random weights. */

const qwen = {
  architectures: ["Qwen2ForCausalLM"],
  model_type: "qwen2",
  hidden_act: "silu",
  max_position_embeddings: 32768,
  rms_norm_eps: 1e-6,
  rope_theta: 1e6,
  use_sliding_window: false,
};
/** Configs for AutoModelForCausalLM.from_config and Learner.create. */
export const modelConfigs = {
  "SmolLM2-135M": {
    architectures: ["LlamaForCausalLM"],
    model_type: "llama",
    hidden_act: "silu",
    hidden_size: 576,
    intermediate_size: 1536,
    num_hidden_layers: 30,
    num_attention_heads: 9,
    num_key_value_heads: 3,
    vocab_size: 49152,
    max_position_embeddings: 8192,
    rms_norm_eps: 1e-5,
    rope_theta: 1e5,
    tie_word_embeddings: true,
  },
  "Qwen2.5-1.5B": {
    ...qwen,
    hidden_size: 1536,
    intermediate_size: 8960,
    num_hidden_layers: 28,
    num_attention_heads: 12,
    num_key_value_heads: 2,
    vocab_size: 151936,
    tie_word_embeddings: true,
  },
  "Qwen2.5-7B": {
    ...qwen,
    hidden_size: 3584,
    intermediate_size: 18944,
    num_hidden_layers: 28,
    num_attention_heads: 28,
    num_key_value_heads: 4,
    vocab_size: 152064,
    tie_word_embeddings: false,
  },
};
