#include <cmath>

#include "core/model/config.h"
#include "test/core/fixtures.h"

using namespace nlac;
using namespace nlac::test;

namespace {

GgufMetadata gguf(const std::string& architecture) {
  const std::string a = architecture + ".";
  return {{"general.architecture", architecture},
          {a + "vocab_size", uint64_t{32}},
          {a + "embedding_length", uint64_t{32}},
          {a + "feed_forward_length", uint64_t{48}},
          {a + "block_count", uint64_t{2}},
          {a + "attention.head_count", uint64_t{4}},
          {a + "attention.head_count_kv", uint64_t{2}},
          {a + "context_length", uint64_t{64}},
          {a + "attention.layer_norm_rms_epsilon", 1e-5}};
}

GgufMetadata with(GgufMetadata metadata, const std::string& key, const GgufValue& value) {
  metadata[key] = value;
  return metadata;
}

}  // namespace

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
  // The model of 62 layers divides scores by the root of hidden size / heads, whatever a head's width.
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

  GgufMetadata experts = with(gguf("qwen3moe"), "qwen3moe.expert_count", uint64_t{4});
  CHECK_REFUSED(ModelConfig::from_gguf(experts, true), "ERR_MODEL_FORMAT", "expert_used_count");
  experts = with(experts, "qwen3moe.expert_used_count", uint64_t{2});
  experts = with(experts, "qwen3moe.expert_feed_forward_length", uint64_t{12});
  CHECK(ModelConfig::from_gguf(experts, true).experts.normalised);
  CHECK_REFUSED(ModelConfig::from_gguf(with(experts, "qwen3moe.expert_used_count", uint64_t{5}), true),
                "ERR_MODEL_FORMAT", "expert_used_count");
}
