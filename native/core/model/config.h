// The architecture of a decoder, read from an HF config.json or from GGUF metadata. Needs no torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/io/gguf.h"

namespace nlac {

enum class Family { llama, qwen2, qwen3 };
enum class RopeScaling { none, linear, llama3, yarn };

struct ModelConfig {
  Family family = Family::llama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double rms_norm_eps = 1e-6;
  bool tied_embeddings = false;
  bool qkv_bias = false;     // Qwen2: always; Llama: attention_bias
  bool output_bias = false;  // Llama's attention_bias also biases o_proj
  bool mlp_bias = false;
  bool qk_norm = false;       // Qwen3
  int64_t max_positions = 0;  // tokens
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 1.0;
  double rope_low_freq_factor = 1.0, rope_high_freq_factor = 4.0;  // llama3
  int64_t rope_original_max_positions = 0;                         // llama3, yarn
  double rope_beta_fast = 32.0, rope_beta_slow = 1.0;              // yarn
  double rope_attention_factor = 0.0;                              // yarn; 0: derive from factor
  double rope_mscale = 0.0, rope_mscale_all_dim = 0.0;             // yarn
  bool rope_truncate = true;                                       // yarn
  std::vector<int64_t> eos_token_ids;
  int64_t bos_token_id = -1, pad_token_id = -1;  // -1: none

  // Both throw ERR_MODEL_FORMAT on anything missing, out of range, or not supported (sliding window
  // in use, another activation, another architecture, …), naming the key and the value.
  static ModelConfig from_json(const std::string& config_json);
  static ModelConfig from_gguf(const GgufMetadata& metadata, bool has_output_tensor);

  // config.json that transformers loads; dtype is "float32" or "bfloat16".
  std::string to_json(const std::string& dtype) const;
};

}  // namespace nlac
