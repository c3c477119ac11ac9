// gpt-oss (GptOssForCausalLM): a mixture of experts in every layer, with biases and a clamped
// activation, attention sinks, and windows in every other layer.
#include <utility>

#include "core/error.h"
#include "core/model/families.h"

namespace nlac {

using namespace config;

static void read(const Section& json, ModelConfig& config) {
  config.qkv_bias = config.output_bias = json.boolean("attention_bias", true);
  config.attention_sinks = true;
  ExpertsShape& experts = config.experts;
  experts = {.count = 128, .per_token = 4, .intermediate = config.intermediate_size, .normalised = true};
  read_experts(json, config);
  NLAC_REQUIRE(experts.count > 0, format_error, json.where("num_local_experts"), " is 0");
  experts.limit = json.number("swiglu_limit").value_or(7.0);
  experts.alpha = json.number("swiglu_alpha").value_or(1.702);
  for (const auto& [key, value] :
       {std::pair{"swiglu_limit", experts.limit}, std::pair{"swiglu_alpha", experts.alpha}})
    NLAC_REQUIRE(value > 0, format_error, json.where(key), " is ", value, ", not a positive number");
  config.rope.theta = 150000.0;
  read_shared_rope(json, config);
  read_layer_types(json, config, read_window(json, 128), 2);
  for (LayerKind& kind : config.layer_kinds) kind.feed_forward = FeedForward::experts;
}

static void write(const ModelConfig& config, nlohmann::ordered_json& json) {
  const ExpertsShape& experts = config.experts;
  json["attention_bias"] = config.output_bias;
  json["num_local_experts"] = experts.count;
  json["num_experts_per_tok"] = experts.per_token;
  json["router_aux_loss_coef"] = experts.balance;
  json["swiglu_limit"] = experts.limit;
  json["swiglu_alpha"] = experts.alpha;
  write_shared_rope(config, json);
  write_layer_types(config, json);
}

static void read_gguf(const GgufReader& reader, ModelConfig& config) {
  config.attention_sinks = true;
  config.rope.truncate = false;
  read_gguf_windows(reader, config, 2, std::nullopt);
  read_gguf_experts(reader, config);
  config.experts.limit = 7, config.experts.alpha = 1.702;  // of all models so far; files do not say
  config.intermediate_size = config.experts.intermediate;
}

const FamilyEntry gpt_oss_family = {
    .family = Family::gpt_oss,
    .name = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .gguf_architecture = "gpt-oss",
    .norms = pre_norms,
    .defaults = R"({"num_hidden_layers": 36, "vocab_size": 201088, "hidden_size": 2880,
                    "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64,
                    "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
                    "rope_parameters": {
                      "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                      "truncate": false, "original_max_position_embeddings": 4096}})",
    .mxfp4 = true,
    .read = read,
    .write = write,
    .read_gguf = read_gguf};

}  // namespace nlac
