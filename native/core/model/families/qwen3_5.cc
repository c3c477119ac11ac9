// Qwen 3.5, the text model (Qwen3_5ForCausalLM): most layers mix tokens by a gated delta net, every
// fourth by gated attention that rotates a quarter of each head.
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

const FamilyEntry qwen3_5_family = {.family = Family::qwen3_5,
                                    .name = "qwen3_5_text",
                                    .architecture = "Qwen3_5ForCausalLM",
                                    .gguf_architecture = nullptr,
                                    .norms = pre_norms,
                                    .defaults = R"({"head_dim": 256})",
                                    .read = read,
                                    .write = write};

}  // namespace nlac
