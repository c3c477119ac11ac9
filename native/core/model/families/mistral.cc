// Mistral (MistralForCausalLM), and Ministral 3 (Ministral3ForCausalLM), which scales queries by
// their position. Every layer has the same window, or none.
#include "core/model/families.h"

namespace nlac {

using namespace config;

static void set_window(ModelConfig& config, int64_t window) {
  if (window > 0) config.layer_kinds.assign(static_cast<size_t>(config.layers), LayerKind{.window = window});
}

static void read_mistral(const Section& json, ModelConfig& config) {
  set_window(config, read_window(json, 4096));
  read_shared_rope(json, config);
}

static void read_ministral3(const Section& json, ModelConfig& config) {
  set_window(config, read_window(json, 0));
  config.rope.theta = 1e6;
  read_shared_rope(json, config);
}

static void write(const ModelConfig& config, nlohmann::ordered_json& json) {
  write_layer_types(config, json);
  json.erase("layer_types");
  write_shared_rope(config, json);
}

const FamilyEntry mistral_family = {.family = Family::mistral,
                                    .name = "mistral",
                                    .architecture = "MistralForCausalLM",
                                    .gguf_architecture = nullptr,
                                    .norms = pre_norms,
                                    .read = read_mistral,
                                    .write = write};
static void read_gguf_ministral3(const GgufReader& reader, ModelConfig& config) {
  if (reader.number("rope.scaling.yarn_log_multiplier") == 1.0)
    config.rope.mscale = config.rope.mscale_all_dim = 1;
  config.rope.query_growth = reader.number("attention.temperature_scale").value_or(0.0);
  reader.require_integer("attention.temperature_length", config.rope.original_max_positions > 0
                                                             ? config.rope.original_max_positions
                                                             : config.max_positions);
}

const FamilyEntry ministral3_family = {.family = Family::ministral3,
                                       .name = "ministral3",
                                       .architecture = "Ministral3ForCausalLM",
                                       .gguf_architecture = "mistral3",
                                       .norms = pre_norms,
                                       .defaults = R"({"head_dim": 128, "rms_norm_eps": 1e-5})",
                                       .read = read_ministral3,
                                       .write = write,
                                       .read_gguf = read_gguf_ministral3,
                                       .gguf_interleaved = true};

}  // namespace nlac
