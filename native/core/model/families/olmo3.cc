// OLMo 3 (Olmo3ForCausalLM): norms after both parts, norms of queries and keys over all heads, and
// windows in most layers, which do not take part in the scaling of rotary positions.
#include "core/model/families.h"

namespace nlac {

using namespace config;

static void read(const Section& json, ModelConfig& config) {
  config.qk_norm = config.whole_qk_norm = true;
  read_attention_bias(json, config);
  config.rope.theta = 500000.0;
  read_two_ropes(json, config, nullptr);
  read_layer_types(json, config, read_window(json, 4096), 4);
}

static void write(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.output_bias;
  write_two_ropes(config, json, nullptr);
  write_layer_types(config, json);
}

static void read_gguf(const GgufReader& reader, ModelConfig& config) {
  config.qk_norm = config.whole_qk_norm = true;
  read_gguf_windows(reader, config, 4, config.rope.theta);
}

const FamilyEntry olmo3_family = {
    .family = Family::olmo3,
    .name = "olmo3",
    .architecture = "Olmo3ForCausalLM",
    .gguf_architecture = "olmo2",
    .norms = {.after_mixer = "post_attention_layernorm", .after_feed_forward = "post_feedforward_layernorm"},
    .defaults = R"({"rms_norm_eps": 1e-5})",
    .read = read,
    .write = write,
    .read_gguf = read_gguf};

}  // namespace nlac
