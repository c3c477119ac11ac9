// What the two readers of configurations share (config_json.cc, config_gguf.cc).
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/model/config.h"

namespace nlac::config {

inline constexpr const char* format_error = "ERR_MODEL_FORMAT";

// Bounds that no real model comes near, yet products of any two stay far from overflow.
inline constexpr int64_t most_vocab = int64_t{1} << 24;
inline constexpr int64_t most_width = int64_t{1} << 20;
inline constexpr int64_t most_layers = 4096;
inline constexpr int64_t most_heads = 8192;
inline constexpr int64_t most_positions = int64_t{1} << 31;

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

// What both sources must satisfy; `where` opens the message.
void validate(const ModelConfig& config, const char* where);

}  // namespace nlac::config
