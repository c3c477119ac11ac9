// Qwen 3.5, the text models (Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM): most layers mix tokens by
// a gated delta net, every fourth by gated attention that rotates a quarter of each head. The
// second has a mixture of experts with a shared one in every layer.
#include "core/error.h"
#include "core/io/json.h"
#include "core/model/families.h"

namespace nlac {

using namespace config;

static constexpr const char *linear = "linear_attention", *full = "full_attention";

static void read_layers(const Section& json, ModelConfig& config) {
  config.layer_kinds.assign(static_cast<size_t>(config.layers), LayerKind{});
  const nlohmann::json* types = json.find("layer_types");
  const int64_t interval = json.integer("full_attention_interval", 1, kMaxLayers).value_or(4);
  NLAC_REQUIRE(types == nullptr || (types->is_array() && types->size() == config.layer_kinds.size()),
               format_error, json.where("layer_types"), " is not a list of ", config.layers, " names");
  for (size_t l = 0; l < config.layer_kinds.size(); ++l) {
    const std::string name = types == nullptr
                                 ? ((static_cast<int64_t>(l) + 1) % interval != 0 ? linear : full)
                             : (*types)[l].is_string() ? (*types)[l].get<std::string>()
                                                       : std::string();
    NLAC_REQUIRE(name == linear || name == full, format_error, json.where("layer_types"), " holds ",
                 types == nullptr ? name : Section::shown((*types)[l]), "; ", linear, " and ", full,
                 " are supported");
    if (name == linear) config.layer_kinds[l].mixer = Mixer::delta;
  }
}

static void read(const Section& json, ModelConfig& config) {
  config.qk_norm = config.norm_plus_one = config.gated_attention = true;
  read_attention_bias(json, config);
  read_layers(json, config);
  GatedDeltaShape& delta = config.delta;
  delta.key_heads = json.integer("linear_num_key_heads", 1, kMaxHeads).value_or(16);
  delta.heads = json.integer("linear_num_value_heads", 1, kMaxHeads).value_or(32);
  delta.key_dim = json.integer("linear_key_head_dim", 1, kMaxWidth).value_or(128);
  delta.value_dim = json.integer("linear_value_head_dim", 1, kMaxWidth).value_or(128);
  delta.kernel = json.integer("linear_conv_kernel_dim", 2, 64).value_or(4);
  delta.eps = config.rms_norm_eps;
  NLAC_REQUIRE(json.boolean("attn_output_gate", true), format_error, json.where("attn_output_gate"),
               " is false; only gated attention is supported");
  config.rope.dimensions = config.head_dim / 4;
  read_shared_rope(json, config);
}

static void write(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.output_bias;
  json["layer_types"] = nlohmann::ordered_json::array();
  for (int64_t l = 0; l < config.layers; ++l)
    json["layer_types"].push_back(config.kind(l).mixer == Mixer::delta ? linear : full);
  json["linear_num_key_heads"] = config.delta.key_heads;
  json["linear_num_value_heads"] = config.delta.heads;
  json["linear_key_head_dim"] = config.delta.key_dim;
  json["linear_value_head_dim"] = config.delta.value_dim;
  json["linear_conv_kernel_dim"] = config.delta.kernel;
  write_shared_rope(config, json);
  const auto dimensions = static_cast<double>(config.rope.dimensions),
             all = static_cast<double>(config.head_dim);
  json["rope_parameters"]["partial_rotary_factor"] = dimensions > 0 ? dimensions / all : 1.0;
}

static void read_gguf(const GgufReader& reader, ModelConfig& config) {
  config.qk_norm = config.norm_plus_one = config.gated_attention = true;
  config.rope.dimensions =
      reader.integer("rope.dimension_count", 2, config.head_dim).value_or(config.head_dim / 4);
  GatedDeltaShape& delta = config.delta;
  delta.kernel = reader.required_integer("ssm.conv_kernel", 2, 64);
  delta.key_dim = reader.required_integer("ssm.state_size", 1, kMaxWidth);
  delta.key_heads = reader.required_integer("ssm.group_count", 1, kMaxHeads);
  delta.heads = reader.required_integer("ssm.time_step_rank", 1, kMaxHeads);
  const int64_t values = reader.required_integer("ssm.inner_size", 1, kMaxHeads * kMaxWidth);
  NLAC_REQUIRE(values % delta.heads == 0, format_error, "GGUF metadata: ", reader.full("ssm.inner_size"),
               " is ", values, ", which does not divide among ", delta.heads, " heads");
  delta.value_dim = values / delta.heads;
  delta.eps = config.rms_norm_eps;
  const int64_t interval = reader.integer("full_attention_interval", 1, kMaxLayers).value_or(4);
  config.layer_kinds.resize(static_cast<size_t>(config.layers));
  for (size_t l = 0; l < config.layer_kinds.size(); ++l)
    if ((static_cast<int64_t>(l) + 1) % interval != 0) config.layer_kinds[l].mixer = Mixer::delta;
}

const FamilyEntry qwen3_5_family = {.family = Family::qwen3_5,
                                    .name = "qwen3_5_text",
                                    .architecture = "Qwen3_5ForCausalLM",
                                    .gguf_architecture = "qwen35",
                                    .norms = pre_norms,
                                    .defaults = R"({"head_dim": 256})",
                                    .read = read,
                                    .write = write,
                                    .read_gguf = read_gguf};

static void read_mixture(const Section& json, ModelConfig& config) {
  read(json, config);
  ExpertsShape& experts = config.experts;
  experts = {.count = 256, .per_token = 8, .intermediate = 512, .normalised = true};
  read_experts(json, config);
  experts.shared = json.integer("shared_expert_intermediate_size", 1, kMaxWidth).value_or(512);
  NLAC_REQUIRE(experts.count > 0, format_error, json.where("num_experts"), " is 0");
  const nlohmann::json* dense = json.find("mlp_only_layers");
  NLAC_REQUIRE(dense == nullptr || (dense->is_array() && dense->empty()), format_error,
               json.where("mlp_only_layers"), " names layers without experts, which are not supported");
  for (LayerKind& kind : config.layer_kinds) kind.feed_forward = FeedForward::experts;
}

static void write_mixture(const ModelConfig& config, nlohmann::ordered_json& json) {
  write(config, json);
  write_experts(config, json);
  json["shared_expert_intermediate_size"] = config.experts.shared;
}

static void read_gguf_mixture(const GgufReader& reader, ModelConfig& config) {
  read_gguf(reader, config);
  if (config.intermediate_size == 0) config.intermediate_size = 512;
  read_gguf_experts(reader, config);
  config.experts.shared = reader.required_integer("expert_shared_feed_forward_length", 1, kMaxWidth);
}

// No layer has a feed-forward part of `intermediate_size`; nlac requires the key.
const FamilyEntry qwen3_5_moe_family = {.family = Family::qwen3_5_moe,
                                        .name = "qwen3_5_moe_text",
                                        .architecture = "Qwen3_5MoeForCausalLM",
                                        .gguf_architecture = "qwen35moe",
                                        .norms = pre_norms,
                                        .defaults = R"({"head_dim": 256, "intermediate_size": 512})",
                                        .read = read_mixture,
                                        .write = write_mixture,
                                        .read_gguf = read_gguf_mixture};

}  // namespace nlac
