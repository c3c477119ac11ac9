#include "core/model/config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/json.h"
#include "core/model/config_limits.h"

namespace nlac {

using namespace config;

void config::validate(const ModelConfig& config, const char* where) {
  const auto positive = [&](double value, const char* what) {
    NLAC_REQUIRE(std::isfinite(value) && value > 0, format_error, where, ": ", what, " is ", value,
                 ", not a positive number");
  };
  NLAC_REQUIRE(config.heads % config.kv_heads == 0, format_error, where, ": ", config.heads,
               " attention heads do not divide among ", config.kv_heads, " key-value heads");
  NLAC_REQUIRE(config.head_dim % 2 == 0, format_error, where, ": a head dimension of ", config.head_dim,
               " is odd, which rotary positions do not allow");
  NLAC_REQUIRE(std::isfinite(config.rms_norm_eps) && config.rms_norm_eps >= 0 && config.rms_norm_eps < 1,
               format_error, where, ": the norm's epsilon is ", config.rms_norm_eps, ", not from 0 to 1");
  positive(config.rope_theta, "the rotary base (rope_theta)");
  positive(config.rope_factor, "the rotary scaling factor");
  if (config.rope_scaling == RopeScaling::llama3) {
    positive(config.rope_low_freq_factor, "low_freq_factor");
    positive(config.rope_high_freq_factor, "high_freq_factor");
    NLAC_REQUIRE(config.rope_high_freq_factor > config.rope_low_freq_factor, format_error, where,
                 ": high_freq_factor ", config.rope_high_freq_factor, " is not above low_freq_factor ",
                 config.rope_low_freq_factor);
  }
  if (config.rope_scaling == RopeScaling::yarn) {
    positive(config.rope_beta_fast, "beta_fast");
    positive(config.rope_beta_slow, "beta_slow");
    NLAC_REQUIRE(config.rope_theta != 1.0, format_error, where, ": rope_theta is 1, which yarn cannot scale");
    for (const double value :
         {config.rope_attention_factor, config.rope_mscale, config.rope_mscale_all_dim}) {
      NLAC_REQUIRE(std::isfinite(value) && value >= 0, format_error, where,
                   ": attention_factor, mscale and mscale_all_dim must be 0 or more, not ", value);
    }
  }
}

std::string ModelConfig::to_json(const std::string& dtype) const {
  NLAC_REQUIRE(dtype == "float32" || dtype == "bfloat16", "ERR_VALUE", "dtype ", printable(dtype),
               " is neither float32 nor bfloat16");
  const bool qwen2 = family == Family::qwen2;
  NLAC_REQUIRE(qwen2 ? qkv_bias && !output_bias : qkv_bias == output_bias, format_error,
               "biases on only some attention projections cannot be written for ",
               names_of(family).architecture);
  NLAC_REQUIRE(!mlp_bias || family == Family::llama, format_error, "biases in the MLP cannot be written for ",
               names_of(family).architecture);
  NLAC_REQUIRE(qk_norm == (family == Family::qwen3), format_error, "query and key norms are Qwen3's alone");

  const auto id_or_null = [](int64_t id) {
    return id < 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(id);
  };
  nlohmann::ordered_json json;
  json["architectures"] = {names_of(family).architecture};
  json["model_type"] = names_of(family).model_type;
  json["torch_dtype"] = dtype;
  json["vocab_size"] = vocab_size;
  json["hidden_size"] = hidden_size;
  json["intermediate_size"] = intermediate_size;
  json["num_hidden_layers"] = layers;
  json["num_attention_heads"] = heads;
  json["num_key_value_heads"] = kv_heads;
  json["head_dim"] = head_dim;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = rms_norm_eps;
  json["max_position_embeddings"] = max_positions;
  json["tie_word_embeddings"] = tied_embeddings;
  if (!qwen2) json["attention_bias"] = output_bias;
  if (family == Family::llama) json["mlp_bias"] = mlp_bias;
  if (family != Family::llama) json["use_sliding_window"] = false;
  json["bos_token_id"] = id_or_null(bos_token_id);
  json["pad_token_id"] = id_or_null(pad_token_id);
  if (eos_token_ids.empty()) {
    json["eos_token_id"] = nullptr;
  } else if (eos_token_ids.size() == 1) {
    json["eos_token_id"] = eos_token_ids.front();
  } else {
    json["eos_token_id"] = eos_token_ids;
  }

  nlohmann::ordered_json rope;
  switch (rope_scaling) {
    case RopeScaling::none: rope["rope_type"] = "default"; break;
    case RopeScaling::linear:
      rope["rope_type"] = "linear";
      rope["factor"] = rope_factor;
      break;
    case RopeScaling::llama3:
      rope["rope_type"] = "llama3";
      rope["factor"] = rope_factor;
      rope["low_freq_factor"] = rope_low_freq_factor;
      rope["high_freq_factor"] = rope_high_freq_factor;
      rope["original_max_position_embeddings"] = rope_original_max_positions;
      break;
    case RopeScaling::yarn:
      rope["rope_type"] = "yarn";
      rope["factor"] = rope_factor;
      rope["original_max_position_embeddings"] = rope_original_max_positions;
      rope["beta_fast"] = rope_beta_fast;
      rope["beta_slow"] = rope_beta_slow;
      if (rope_attention_factor != 0.0) rope["attention_factor"] = rope_attention_factor;
      if (rope_mscale != 0.0) rope["mscale"] = rope_mscale;
      if (rope_mscale_all_dim != 0.0) rope["mscale_all_dim"] = rope_mscale_all_dim;
      rope["truncate"] = rope_truncate;
      break;
  }
  // Both spellings, so that transformers of before and after 5 read the same model.
  json["rope_theta"] = rope_theta;
  json["rope_scaling"] = rope_scaling == RopeScaling::none ? nlohmann::ordered_json(nullptr) : rope;
  rope["rope_theta"] = rope_theta;
  json["rope_parameters"] = rope;
  return json.dump(2) + "\n";
}

}  // namespace nlac
