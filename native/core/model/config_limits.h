// Shared by the readers of configurations, config_json.cc and config_gguf.cc.
#pragma once

#include <cstdint>

#include "core/model/config.h"

namespace nlac::config {

inline constexpr const char* format_error = "ERR_MODEL_FORMAT";

// Far above every real model; the product of any two does not overflow.
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 8192;
inline constexpr int64_t kMaxExperts = 8192;
inline constexpr int64_t kMaxPositions = int64_t{1} << 31;

// Leaves no kinds of layers if each is a LayerKind{}, so that equal models have equal
// configurations.
void drop_plain_kinds(ModelConfig& config);

// Checks a configuration. `where` opens the message.
void validate(const ModelConfig& config, const char* where);

}  // namespace nlac::config
