// Qwen 3, mixtures of experts (Qwen3MoeForCausalLM): Qwen 3 with experts in all layers, or in every
// few.
#include <algorithm>

#include "core/error.h"
#include "core/model/families.h"

namespace nlac {

using namespace config;

// The layers that have experts: every decoder_sparse_step-th, without those of mlp_only_layers.
static void read_layers(const Section& json, ModelConfig& config) {
  const int64_t step = json.integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  std::vector<bool> dense(static_cast<size_t>(config.layers), config.experts.count == 0);
  if (const nlohmann::json* only = json.find("mlp_only_layers")) {
    NLAC_REQUIRE(only->is_array(), format_error, json.where("mlp_only_layers"), " is ", Section::shown(*only),
                 ", not a list of layers");
    for (const nlohmann::json& layer : *only) {
      const nlohmann::json one = {{"mlp_only_layers", layer}};
      dense[static_cast<size_t>(Section(one, "").required_integer("mlp_only_layers", 0, config.layers - 1))] =
          true;
    }
  }
  config.layer_kinds.assign(dense.size(), LayerKind{});
  for (size_t l = 0; l < dense.size(); ++l)
    if (!dense[l] && (static_cast<int64_t>(l) + 1) % step == 0)
      config.layer_kinds[l].feed_forward = FeedForward::experts;
}

static void read(const Section& json, ModelConfig& config) {
  config.qk_norm = true;
  read_attention_bias(json, config);
  refuse_sliding_window(json);
  config.experts = {.count = 128, .per_token = 8, .intermediate = 768};
  read_experts(json, config);
  config.experts.normalised = json.boolean("norm_topk_prob", false);
  read_layers(json, config);
  read_shared_rope(json, config);
}

static void write(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.output_bias;
  json["use_sliding_window"] = false;
  write_experts(config, json);
  json["norm_topk_prob"] = config.experts.normalised;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = nlohmann::ordered_json::array();
  for (int64_t l = 0; l < config.layers && config.experts.count > 0; ++l)
    if (config.kind(l).feed_forward == FeedForward::gated) json["mlp_only_layers"].push_back(l);
  write_shared_rope(config, json);
}

static void read_gguf(const GgufReader& reader, ModelConfig& config) {
  config.qk_norm = true;
  if (config.intermediate_size == 0) config.intermediate_size = 1;  // of no layer
  read_gguf_experts(reader, config);
}

const FamilyEntry qwen3_moe_family = {.family = Family::qwen3_moe,
                                      .name = "qwen3_moe",
                                      .architecture = "Qwen3MoeForCausalLM",
                                      .gguf_architecture = "qwen3moe",
                                      .norms = pre_norms,
                                      .read = read,
                                      .write = write,
                                      .read_gguf = read_gguf};

}  // namespace nlac
