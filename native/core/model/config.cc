#include "core/model/config.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/model/config_limits.h"

namespace nlac {

using namespace config;

static void validate_rope(const RopeConfig& rope, int64_t head_dim, const char* where) {
  const auto positive = [&](double value, const char* what) {
    NLAC_REQUIRE(std::isfinite(value) && value > 0, format_error, where, ": ", what, " is ", value,
                 ", not a positive number");
  };
  positive(rope.theta, "the rotary base (rope_theta)");
  positive(rope.factor, "the rotary scaling factor");
  NLAC_REQUIRE(rope.dimensions >= 0 && rope.dimensions % 2 == 0 && rope.dimensions <= head_dim, format_error,
               where, ": ", rope.dimensions, " rotary dimensions of ", head_dim,
               " are odd or more than there are");
  NLAC_REQUIRE(std::isfinite(rope.query_growth) && rope.query_growth >= 0, format_error, where,
               ": llama_4_scaling_beta is ", rope.query_growth, ", not 0 or more");
  NLAC_REQUIRE(rope.query_growth == 0 || rope.original_max_positions > 0, format_error, where,
               ": llama_4_scaling_beta needs original_max_position_embeddings");
  if (rope.scaling == RopeScaling::llama3) {
    positive(rope.low_freq_factor, "low_freq_factor");
    positive(rope.high_freq_factor, "high_freq_factor");
    NLAC_REQUIRE(rope.high_freq_factor > rope.low_freq_factor, format_error, where, ": high_freq_factor ",
                 rope.high_freq_factor, " is not above low_freq_factor ", rope.low_freq_factor);
  }
  NLAC_REQUIRE(rope.proportion > 0 && rope.proportion <= 1, format_error, where,
               ": partial_rotary_factor is ", rope.proportion, ", not above 0 and up to 1");
  if (rope.scaling == RopeScaling::yarn) {
    positive(rope.beta_fast, "beta_fast");
    positive(rope.beta_slow, "beta_slow");
    NLAC_REQUIRE(rope.theta != 1.0, format_error, where, ": rope_theta is 1, which yarn cannot scale");
    for (const double value : {rope.attention_factor, rope.mscale, rope.mscale_all_dim}) {
      NLAC_REQUIRE(std::isfinite(value) && value >= 0, format_error, where,
                   ": attention_factor, mscale and mscale_all_dim must be 0 or more, not ", value);
    }
  }
}

static void validate_heads(const ModelConfig& config, const LayerKind& kind, const char* where) {
  const int64_t kv_heads = config.kv_heads_of(kind), head_dim = config.head_dim_of(kind);
  NLAC_REQUIRE(config.heads % kv_heads == 0, format_error, where, ": ", config.heads,
               " attention heads do not divide among ", kv_heads, " key-value heads");
  NLAC_REQUIRE(head_dim % 2 == 0, format_error, where, ": a head dimension of ", head_dim,
               " is odd, which rotary positions do not allow");
}

// The width of the heads that a scheme rotates.
static int64_t rotated_head_dim(const ModelConfig& config, Rotary which) {
  for (const LayerKind& kind : config.layer_kinds)
    if (kind.mixer == Mixer::attention && kind.rotary == which) return config.head_dim_of(kind);
  return config.head_dim;
}

void config::drop_plain_kinds(ModelConfig& config) {
  const bool plain = std::all_of(config.layer_kinds.begin(), config.layer_kinds.end(),
                                 [](const LayerKind& kind) { return kind == LayerKind{}; });
  if (plain) config.layer_kinds.clear();
}

void config::validate(const ModelConfig& config, const char* where) {
  validate_heads(config, LayerKind{}, where);
  for (const LayerKind& kind : config.layer_kinds) validate_heads(config, kind, where);
  NLAC_REQUIRE(std::isfinite(config.rms_norm_eps) && config.rms_norm_eps >= 0 && config.rms_norm_eps < 1,
               format_error, where, ": the norm's epsilon is ", config.rms_norm_eps, ", not from 0 to 1");
  NLAC_REQUIRE(config.layer_kinds.empty() || static_cast<int64_t>(config.layer_kinds.size()) == config.layers,
               format_error, where, ": ", config.layer_kinds.size(), " kinds of layers for ", config.layers,
               " layers");
  NLAC_REQUIRE(std::isfinite(config.attention_scalar) && config.attention_scalar >= 0, format_error, where,
               ": query_pre_attn_scalar is ", config.attention_scalar, ", not 0 or more");
  NLAC_REQUIRE(std::all_of(config.layer_kinds.begin(), config.layer_kinds.end(),
                           [&](const LayerKind& kind) {
                             return kind.window >= 0 && (kind.rotary != Rotary::local || config.local_rope);
                           }),
               "ERR_INTERNAL", where, ": a layer has a negative window or no local rotary scheme");
  const auto mixes_by = [&](Mixer mixer) {
    return std::any_of(config.layer_kinds.begin(), config.layer_kinds.end(),
                       [&](const LayerKind& kind) { return kind.mixer == mixer; });
  };
  NLAC_REQUIRE(config.layer_kinds.empty() || mixes_by(Mixer::attention), format_error, where,
               ": no layer has full_attention; a model without attention is not supported");
  NLAC_REQUIRE(!mixes_by(Mixer::delta) || config.delta.heads % config.delta.key_heads == 0, format_error,
               where, ": ", config.delta.heads, " value heads do not divide among ", config.delta.key_heads,
               " key heads of linear attention");
  validate_rope(config.rope, rotated_head_dim(config, Rotary::global), where);
  if (config.local_rope) validate_rope(*config.local_rope, rotated_head_dim(config, Rotary::local), where);
  NLAC_REQUIRE(std::isfinite(config.logit_cap) && config.logit_cap >= 0, format_error, where,
               ": final_logit_softcapping is ", config.logit_cap, ", not above 0");
  NLAC_REQUIRE(config.layer_input_size == 0 || config.layer_input_vocab >= config.vocab_size, format_error,
               where, ": vocab_size_per_layer_input is ", config.layer_input_vocab,
               ", less than the vocabulary of ", config.vocab_size);
  for (int64_t l = 0; l < config.layers; ++l) {
    const LayerKind kind = config.kind(l);
    const bool valid = kind.keys == Keys::own    ? kind.keys_of == -1
                       : kind.keys == Keys::lent ? kind.keys_of == l
                                                 : kind.keys_of >= 0 && kind.keys_of < l &&
                                                       config.kind(kind.keys_of).keys == Keys::lent;
    NLAC_REQUIRE(valid, "ERR_INTERNAL", where, ": layer ", l, " has the keys of layer ", kind.keys_of);
  }
}

}  // namespace nlac
