// GGUF metadata of a small model, for tests of configurations.
#pragma once

#include <string>

#include "core/model/config.h"

namespace nlac::test {

inline GgufMetadata gguf(const std::string& architecture) {
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

inline GgufMetadata with(GgufMetadata metadata, const std::string& key, const GgufValue& value) {
  metadata[key] = value;
  return metadata;
}

}  // namespace nlac::test
