// Qwen 2 and 2.5 (Qwen2ForCausalLM), which bias queries, keys and values, and Qwen 3
// (Qwen3ForCausalLM), which normalises queries and keys.
#include "core/model/families.h"

namespace nlac {

using namespace config;

static void read_qwen2(const Section& json, ModelConfig& config) {
  config.qkv_bias = true;
  refuse_sliding_window(json);
  read_shared_rope(json, config);
}

static void write_qwen2(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["use_sliding_window"] = false;
  write_shared_rope(config, json);
}

static void read_qwen3(const Section& json, ModelConfig& config) {
  config.qk_norm = true;
  read_attention_bias(json, config);
  refuse_sliding_window(json);
  read_shared_rope(json, config);
}

static void write_qwen3(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.output_bias;
  json["use_sliding_window"] = false;
  write_shared_rope(config, json);
}

static void read_gguf_qwen2(const GgufReader&, ModelConfig& config) { config.qkv_bias = true; }

const FamilyEntry qwen2_family = {.family = Family::qwen2,
                                  .name = "qwen2",
                                  .architecture = "Qwen2ForCausalLM",
                                  .gguf_architecture = "qwen2",
                                  .norms = pre_norms,
                                  .read = read_qwen2,
                                  .write = write_qwen2,
                                  .read_gguf = read_gguf_qwen2};
static void read_gguf_qwen3(const GgufReader&, ModelConfig& config) { config.qk_norm = true; }

const FamilyEntry qwen3_family = {.family = Family::qwen3,
                                  .name = "qwen3",
                                  .architecture = "Qwen3ForCausalLM",
                                  .gguf_architecture = "qwen3",
                                  .norms = pre_norms,
                                  .defaults = R"({"head_dim": 128})",
                                  .read = read_qwen3,
                                  .write = write_qwen3,
                                  .read_gguf = read_gguf_qwen3};

}  // namespace nlac
