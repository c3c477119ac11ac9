// The architecture of a decoder, read from an HF config.json or from GGUF metadata. Needs no torch.
// families.h has what differs between families besides these values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/io/gguf.h"
#include "core/model/experts_shape.h"
#include "core/model/gated_delta_shape.h"

namespace nlac {

enum class Family {
  llama,
  qwen2,
  qwen3,
  qwen3_5,
  qwen3_5_moe,
  qwen3_moe,
  smollm3,
  mistral,
  ministral3,
  olmo3,
  gemma3,
  gemma4,
  gpt_oss
};

// A scheme of rotary positions (rope.h).
enum class RopeScaling { none, linear, llama3, yarn, proportional };
struct RopeConfig {
  double theta = 10000.0;
  int64_t dimensions = 0;  // leading dimensions of a head that rotate; 0: all
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int64_t original_max_positions = 0;                    // llama3, yarn
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double attention_factor = 0.0;                         // yarn; 0: derive from factor
  double mscale = 0.0, mscale_all_dim = 0.0;             // yarn
  bool truncate = true;                                  // yarn
  double proportion = 1.0;                               // proportional: of the frequencies; the others are 0
  // Queries are multiplied by 1 + query_growth · log(1 + floor(position / original_max_positions)).
  double query_growth = 0;

  bool operator==(const RopeConfig&) const = default;
};

// What one layer is made of. A new mixer or feed-forward part adds its name here, its weights to
// LayerWeights, its activations to LayerTape, and its cases to layer.cc and parameters.cc.
enum class Mixer { attention, delta };
// beside: experts beside a gated part (experts_beside.h).
enum class FeedForward { gated, experts, beside };
enum class Rotary { none, global, local };
// Whose keys and values attention reads: its own, its own that later layers read too, or another's.
enum class Keys { own, lent, borrowed };
struct LayerKind {
  Mixer mixer = Mixer::attention;
  FeedForward feed_forward = FeedForward::gated;
  Rotary rotary = Rotary::global;
  int64_t window = 0;  // tokens that attention sees, the query's own included; 0: all
  int64_t head_dim = 0, kv_heads = 0, intermediate = 0;  // 0: the model's
  bool values_from_keys = false;  // values are the keys' projection too, each normalised in its own way
  Keys keys = Keys::own;
  int64_t keys_of = -1;  // lent, borrowed: the layer that computes them

  bool operator==(const LayerKind&) const = default;
};

enum class Activation { silu, gelu_tanh };

struct ModelConfig {
  Family family = Family::llama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  std::vector<LayerKind> layer_kinds;  // one for each layer; empty: every layer is a LayerKind{}
  Activation activation = Activation::silu;
  double rms_norm_eps = 1e-6;
  bool tied_embeddings = false;
  bool qkv_bias = false;     // Qwen2: always; Llama: attention_bias
  bool output_bias = false;  // Llama's attention_bias also biases o_proj
  bool mlp_bias = false;
  bool qk_norm = false;          // queries and keys are normalised, each head alone
  bool whole_qk_norm = false;    // with qk_norm: all heads together
  bool value_norm = false;       // with qk_norm: each head of the values too, without a weight
  bool gated_attention = false;  // its output is multiplied by sigmoid(gate), which q_proj yields too
  bool attention_sinks = false;  // each head has a score of no token, which takes a share of the softmax
  double attention_scalar = 0;   // scores are divided by its square root; 0: by that of head_dim
  double embedding_scale = 1;    // of the embedding's rows
  bool norm_plus_one = false;    // a norm multiplies by 1 + weight
  bool layer_scalars = false;    // a layer's output is multiplied by a number, which is not trained
  double logit_cap = 0;          // logits are cap · tanh(logit / cap); 0: uncapped
  // Width of what each layer gets of every token besides (layer_inputs.h); 0: nothing. And the rows of
  // their table.
  int64_t layer_input_size = 0, layer_input_vocab = 0;
  GatedDeltaShape delta;      // of layers with Mixer::delta
  ExpertsShape experts;       // of layers with FeedForward::experts or beside
  int64_t max_positions = 0;  // tokens
  RopeConfig rope;            // of layers with Rotary::global
  std::optional<RopeConfig> local_rope;
  std::vector<int64_t> eos_token_ids;
  int64_t bos_token_id = -1, pad_token_id = -1;  // -1: none

  LayerKind kind(int64_t layer) const {
    return layer_kinds.empty() ? LayerKind{} : layer_kinds[static_cast<size_t>(layer)];
  }
  int64_t head_dim_of(const LayerKind& kind) const { return kind.head_dim > 0 ? kind.head_dim : head_dim; }
  int64_t kv_heads_of(const LayerKind& kind) const { return kind.kv_heads > 0 ? kind.kv_heads : kv_heads; }
  int64_t intermediate_of(const LayerKind& kind) const {
    return kind.intermediate > 0 ? kind.intermediate : intermediate_size;
  }

  // Both throw ERR_MODEL_FORMAT on anything missing, out of range, or not supported (another
  // activation, another architecture, …), naming the key and the value. GGUF metadata may leave out what
  // only the tensors show (load_weights.cc).
  static ModelConfig from_json(const std::string& config_json);
  static ModelConfig from_gguf(const GgufMetadata& metadata, bool has_output_tensor);

  // config.json that transformers loads; dtype is "float32" or "bfloat16". Throws ERR_MODEL_FORMAT
  // if the family's config.json cannot express the configuration.
  std::string to_json(const std::string& dtype) const;

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace nlac
