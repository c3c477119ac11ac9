// Llama 2 and 3: config.json of LlamaForCausalLM.
#include "core/model/families.h"

namespace nlac {

using namespace config;

static void read(const Section& json, ModelConfig& config) {
  read_attention_bias(json, config);
  config.mlp_bias = json.boolean("mlp_bias", false);
  refuse_sliding_window(json);
  read_shared_rope(json, config);
}

static void write(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.output_bias;
  json["mlp_bias"] = config.mlp_bias;
  write_shared_rope(config, json);
}

const FamilyEntry llama_family = {.family = Family::llama,
                                  .name = "llama",
                                  .architecture = "LlamaForCausalLM",
                                  .gguf_architecture = "llama",
                                  .norms = pre_norms,
                                  .read = read,
                                  .write = write,
                                  .gguf_interleaved = true};

}  // namespace nlac
