#include <cmath>

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
