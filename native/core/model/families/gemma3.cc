// The text model of Gemma 3 (Gemma3ForCausalLM): norms of 1 + weight on both sides of both parts,
// GeGLU, a scaled embedding, and windows with their own rotary base in all layers but every sixth.
#include <cmath>

#include "core/error.h"
#include "core/model/families.h"

namespace nlac {

using namespace config;

static void read(const Section& json, ModelConfig& config) {
  config.qk_norm = config.norm_plus_one = true;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  const double scalar = json.number("query_pre_attn_scalar").value_or(256);
  NLAC_REQUIRE(scalar > 0, format_error, json.where("query_pre_attn_scalar"), " is ", scalar,
               ", not a positive number");
  if (scalar != static_cast<double>(config.head_dim)) config.attention_scalar = scalar;
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"})
    NLAC_REQUIRE(json.find(key) == nullptr, format_error, json.where(key), " is not supported");
  NLAC_REQUIRE(!json.boolean("use_bidirectional_attention", false), format_error,
               json.where("use_bidirectional_attention"), " is true, which is not supported");
  read_attention_bias(json, config);
  config.rope.theta = 1e6;
  read_two_ropes(json, config, "rope_local_base_freq");
  read_layer_types(json, config, read_window(json, 4096),
                   json.integer("sliding_window_pattern", 1, kMaxLayers).value_or(6));
}

static void write(const ModelConfig& config, nlohmann::ordered_json& json) {
  const double scalar =
      config.attention_scalar > 0 ? config.attention_scalar : static_cast<double>(config.head_dim);
  if (scalar == std::floor(scalar) && scalar < 1e15)  // an integer in transformers
    json["query_pre_attn_scalar"] = static_cast<int64_t>(scalar);
  else
    json["query_pre_attn_scalar"] = scalar;
  json["attention_bias"] = config.output_bias;
  write_two_ropes(config, json, "rope_local_base_freq");
  write_layer_types(config, json);
}

static void read_gguf(const GgufReader& reader, ModelConfig& config) {
  config.qk_norm = config.norm_plus_one = true;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  // Gemma 3 27B, the one of 62 layers, scales its scores by the mean width of a head.
  if (config.layers == 62)
    config.attention_scalar = static_cast<double>(config.hidden_size) / static_cast<double>(config.heads);
  if (config.attention_scalar == static_cast<double>(config.head_dim)) config.attention_scalar = 0;
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"})
    NLAC_REQUIRE(reader.find(reader.full(key)) == nullptr, format_error, "GGUF metadata: ", reader.full(key),
                 " is not supported");
  read_gguf_windows(reader, config, 6, 10000.0);
}

const FamilyEntry gemma3_family = {
    .family = Family::gemma3,
    .name = "gemma3_text",
    .architecture = "Gemma3ForCausalLM",
    .gguf_architecture = "gemma3",
    .norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
              "post_feedforward_layernorm"},
    .defaults = R"({"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
                    "head_dim": 256, "max_position_embeddings": 131072, "tie_word_embeddings": true})",
    .activation = Activation::gelu_tanh,
    .activation_key = "hidden_activation",
    .read = read,
    .write = write,
    .read_gguf = read_gguf};

}  // namespace nlac
