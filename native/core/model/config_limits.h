// Shared by the readers of configurations, config_json.cc and config_gguf.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/model/config.h"

namespace nlac::config {

inline constexpr const char* format_error = "ERR_MODEL_FORMAT";

// Far above every real model; the product of any two does not overflow.
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 8192;
inline constexpr int64_t kMaxPositions = int64_t{1} << 31;

struct FamilyNames {
  Family family;
  const char* architecture;  // config.json's architectures[0]
  const char* model_type;    // config.json's model_type, and GGUF's general.architecture
};
inline constexpr FamilyNames families[] = {
    {Family::llama, "LlamaForCausalLM", "llama"},
    {Family::qwen2, "Qwen2ForCausalLM", "qwen2"},
    {Family::qwen3, "Qwen3ForCausalLM", "qwen3"},
};

inline const FamilyNames& names_of(Family family) {
  return *std::find_if(std::begin(families), std::end(families),
                       [&](const FamilyNames& names) { return names.family == family; });
}

// Checks a configuration. `where` opens the message.
void validate(const ModelConfig& config, const char* where);

}  // namespace nlac::config
