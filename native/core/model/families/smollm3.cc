// SmolLM 3 (SmolLM3ForCausalLM): Llama without rotary positions in some layers. With
// use_sliding_window those layers have a window.
#include "core/error.h"
#include "core/model/families.h"

namespace nlac {

using namespace config;

static void read(const Section& json, ModelConfig& config) {
  read_attention_bias(json, config);
  config.mlp_bias = json.boolean("mlp_bias", false);
  config.rope.theta = 2e6;
  read_shared_rope(json, config);

  const int64_t interval = json.integer("no_rope_layer_interval", 1, kMaxLayers).value_or(4);
  const nlohmann::json* rotary = json.find("no_rope_layers");  // 1: with rotary positions, 0: without
  NLAC_REQUIRE(
      rotary == nullptr || (rotary->is_array() && static_cast<int64_t>(rotary->size()) >= config.layers),
      format_error, json.where("no_rope_layers"), " is not a list with an entry for each layer");
  const int64_t window = json.boolean("use_sliding_window", false) ? read_window(json, 0) : 0;
  config.layer_kinds.resize(static_cast<size_t>(config.layers));
  for (int64_t l = 0; l < config.layers; ++l) {
    LayerKind& kind = config.layer_kinds[static_cast<size_t>(l)];
    bool turns = (l + 1) % interval != 0;
    if (rotary != nullptr) {
      const nlohmann::json& one = (*rotary)[static_cast<size_t>(l)];
      NLAC_REQUIRE(one == 0 || one == 1, format_error, json.where("no_rope_layers"), " holds ",
                   Section::shown(one), ", not 0 or 1");
      turns = one == 1;
    }
    if (!turns) kind.rotary = Rotary::none;
    if (!turns) kind.window = window;
  }
}

static void write(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.output_bias;
  json["mlp_bias"] = config.mlp_bias;
  nlohmann::ordered_json rotary = nlohmann::ordered_json::array();
  for (int64_t l = 0; l < config.layers; ++l) rotary.push_back(config.kind(l).rotary == Rotary::none ? 0 : 1);
  json["no_rope_layers"] = rotary;
  write_layer_types(config, json);
  json["use_sliding_window"] = !json["sliding_window"].is_null();
  write_shared_rope(config, json);
}

static void read_gguf(const GgufReader&, ModelConfig& config) {
  config.layer_kinds.assign(static_cast<size_t>(config.layers), LayerKind{});
  for (size_t l = 3; l < config.layer_kinds.size(); l += 4) config.layer_kinds[l].rotary = Rotary::none;
}

const FamilyEntry smollm3_family = {.family = Family::smollm3,
                                    .name = "smollm3",
                                    .architecture = "SmolLM3ForCausalLM",
                                    .gguf_architecture = "smollm3",
                                    .norms = pre_norms,
                                    .defaults = R"({"tie_word_embeddings": true})",
                                    .read = read,
                                    .write = write,
                                    .read_gguf = read_gguf,
                                    .gguf_interleaved = true};

}  // namespace nlac
