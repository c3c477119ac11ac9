#include <cmath>
#include <map>

#include "test/core/fixtures.h"
#include "test/core/model/gguf_metadata.h"

using namespace nlac;
using namespace nlac::test;

TEST_CASE("GGUF metadata of families with windows and experts") {
  GgufMetadata gemma = with(gguf("gemma3"), "gemma3.attention.sliding_window", uint64_t{16});
  gemma = with(with(gemma, "gemma3.block_count", uint64_t{7}), "gemma3.rope.freq_base", 1e6);
  const ModelConfig config = ModelConfig::from_gguf(gemma, false);
  for (int64_t l = 0; l < 7; ++l) {
    CHECK(config.kind(l).window == (l == 5 ? 0 : 16));
    CHECK((config.kind(l).rotary == (l == 5 ? Rotary::global : Rotary::local)));
  }
  CHECK(config.local_rope->theta == 10000.0);
  CHECK(config.embedding_scale == std::sqrt(32.0));
  CHECK(config.attention_scalar == 0.0);
  // The model of 62 layers divides scores by the root of hidden size / heads, whatever a head's
  // width.
  GgufMetadata large = with(gemma, "gemma3.block_count", uint64_t{62});
  large = with(large, "gemma3.attention.key_length", uint64_t{12});
  CHECK(ModelConfig::from_gguf(large, false).attention_scalar == 8.0);
  CHECK_REFUSED(ModelConfig::from_gguf(with(gemma, "gemma3.final_logit_softcapping", 30.0), false),
                "ERR_MODEL_FORMAT", "softcapping");

  GgufMetadata olmo = with(gguf("olmo2"), "olmo2.attention.sliding_window", uint64_t{16});
  olmo = with(olmo, "olmo2.attention.sliding_window_pattern", std::vector<bool>{false, true});
  CHECK(ModelConfig::from_gguf(olmo, true).kind(0).window == 0);
  CHECK(ModelConfig::from_gguf(olmo, true).kind(1).window == 16);
  CHECK(ModelConfig::from_gguf(gguf("olmo2"), true).kind(1).window == 0);
  CHECK_REFUSED(ModelConfig::from_gguf(
                    with(olmo, "olmo2.attention.sliding_window_pattern", std::vector<bool>{true}), true),
                "ERR_MODEL_FORMAT", "sliding_window_pattern");

  // A checkpoint has the configuration as a config.json.
  for (const char* architecture : {"gemma3", "olmo2"}) {
    const ModelConfig whole = ModelConfig::from_gguf(gguf(architecture), false);
    CHECK(ModelConfig::from_json(whole.to_json("float32")) == whole);
  }

  GgufMetadata experts = with(gguf("qwen3moe"), "qwen3moe.expert_count", uint64_t{4});
  CHECK_REFUSED(ModelConfig::from_gguf(experts, true), "ERR_MODEL_FORMAT", "expert_used_count");
  experts = with(experts, "qwen3moe.expert_used_count", uint64_t{2});
  experts = with(experts, "qwen3moe.expert_feed_forward_length", uint64_t{12});
  CHECK(ModelConfig::from_gguf(experts, true).experts.normalised);
  CHECK_REFUSED(ModelConfig::from_gguf(with(experts, "qwen3moe.expert_used_count", uint64_t{5}), true),
                "ERR_MODEL_FORMAT", "expert_used_count");
}

TEST_CASE("GGUF metadata of Gemma 4: lists by layer, and what is refused") {
  GgufMetadata base = gguf("gemma4");
  for (const auto& [key, value] :
       std::map<std::string, GgufValue>{{"attention.sliding_window", uint64_t{16}},
                                        {"attention.sliding_window_pattern", std::vector<bool>{true, false}},
                                        {"attention.key_length", uint64_t{16}},
                                        {"attention.value_length", uint64_t{16}},
                                        {"attention.key_length_swa", uint64_t{8}},
                                        {"attention.head_count_kv", std::vector<uint64_t>{2, 1}},
                                        {"rope.freq_base", 1e6}})
    base["gemma4." + key] = value;
  const ModelConfig config = ModelConfig::from_gguf(base, false);
  CHECK(config.kind(0) == LayerKind{.rotary = Rotary::local, .window = 16});
  CHECK(config.kind(1) == LayerKind{.head_dim = 16, .kv_heads = 1});
  CHECK(config.head_dim == 8);
  CHECK(config.kv_heads == 2);
  CHECK(config.layer_input_size == 0);
  CHECK(config.experts.count == 0);
  const auto refused = [&](const std::string& key, const GgufValue& value) {
    CAPTURE(key);
    CHECK_REFUSED(ModelConfig::from_gguf(with(base, "gemma4." + key, value), false), "ERR_MODEL_FORMAT", key);
  };
  refused("attention.value_length_swa", uint64_t{12});
  refused("rope.dimension_count", uint64_t{8});
  refused("rope.dimension_count_swa", uint64_t{4});
  refused("attention.shared_kv_layers", uint64_t{1});  // no full attention before
  refused("attention.shared_kv_layers", uint64_t{2});
  refused("attention.head_count_kv", std::vector<uint64_t>{2, 1, 1});
  refused("attention.head_count_kv", std::vector<uint64_t>{0, 1});
  refused("feed_forward_length", std::string("wide"));
}

TEST_CASE("GGUF metadata of Qwen 3.5: layers, sizes, and what is refused") {
  const auto metadata = [](const std::string& a) {
    GgufMetadata base = gguf(a);
    for (const auto& [key, value] : {std::pair{"block_count", 5},
                                     {"nextn_predict_layers", 1},
                                     {"ssm.conv_kernel", 4},
                                     {"ssm.state_size", 8},
                                     {"ssm.group_count", 2},
                                     {"ssm.time_step_rank", 6},
                                     {"ssm.inner_size", 30}})
      base[a + "." + key] = static_cast<uint64_t>(value);
    return base;
  };
  const GgufMetadata dense = metadata("qwen35");
  const ModelConfig config = ModelConfig::from_gguf(dense, true);
  CHECK(config.layers == 4);  // the last block predicts further tokens
  for (int64_t l = 0; l < 4; ++l) CHECK(config.kind(l).mixer == (l == 3 ? Mixer::attention : Mixer::delta));
  CHECK(config.delta == GatedDeltaShape{2, 6, 8, 5, 4, 1e-5});
  CHECK(config.rope.dimensions == config.head_dim / 4);
  CHECK(config.gated_attention);
  const auto refused = [&](const GgufMetadata& base, const std::string& key, uint64_t value) {
    CAPTURE(key);
    CHECK_REFUSED(ModelConfig::from_gguf(with(base, key, value), true), "ERR_MODEL_FORMAT", key);
  };
  refused(dense, "qwen35.nextn_predict_layers", 5);  // no layer is left
  refused(dense, "qwen35.ssm.inner_size", 31);
  refused(dense, "qwen35.ssm.group_count", 0);
  refused(dense, "qwen35.ssm.conv_kernel", 1);
  refused(dense, "qwen35.rope.dimension_count", 10);  // of 8
  refused(dense, "qwen35.expert_count", 4);

  GgufMetadata mixture = metadata("qwen35moe");
  CHECK_REFUSED(ModelConfig::from_gguf(mixture, true), "ERR_MODEL_FORMAT", "expert_count");
  for (const auto& [key, value] :
       {std::pair{"expert_count", 4}, {"expert_used_count", 2}, {"expert_feed_forward_length", 12}})
    mixture[std::string("qwen35moe.") + key] = static_cast<uint64_t>(value);
  CHECK_REFUSED(ModelConfig::from_gguf(mixture, true), "ERR_MODEL_FORMAT",
                "expert_shared_feed_forward_length");
  mixture["qwen35moe.expert_shared_feed_forward_length"] = uint64_t{20};
  CHECK(ModelConfig::from_gguf(mixture, true).experts == ExpertsShape{4, 2, 12, true, 0.001, 20});
}
