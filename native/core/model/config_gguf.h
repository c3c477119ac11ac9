// The metadata of a GGUF file, read key by key. Errors are ERR_MODEL_FORMAT and name the key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/config_limits.h"

namespace nlac::config {

// Keys are given without the architecture's prefix: integer("block_count").
class GgufReader {
 public:
  explicit GgufReader(const GgufMetadata& metadata) : metadata_(metadata) {}

  void set_architecture(const std::string& name) { prefix_ = name + "."; }

  // Keys with their prefix.
  std::string text(const std::string& key) const;
  std::optional<int64_t> integer_at(const std::string& key, int64_t min, int64_t max) const;
  const GgufValue* find(const std::string& key) const;  // null: absent

  std::optional<int64_t> integer(const char* key, int64_t min, int64_t max) const;
  int64_t required_integer(const char* key, int64_t min, int64_t max) const;
  // One number for each layer: a list, or the same for all; nothing if the key is absent.
  std::optional<std::vector<int64_t>> layer_integers(const char* key, int64_t layers, int64_t min,
                                                     int64_t max) const;
  std::optional<double> number(const char* key) const;
  double required_number(const char* key) const;
  bool boolean(const char* key, bool otherwise) const;
  // If the key exists, its value must be the one that nlac implies.
  void require_number(const char* key, double expected) const;
  void require_integer(const char* key, int64_t expected) const;
  // Which layers have a window: a list with an entry for each layer, or every layer but each
  // period-th.
  std::vector<bool> windowed_layers(int64_t layers, int64_t period) const;

  std::string full(const char* key) const { return prefix_ + key; }

 private:
  const GgufMetadata& metadata_;
  std::string prefix_;
};

// Sets layer_kinds: windows as the file says, and with `local_theta` their own rotary scheme, which is
// not scaled.
void read_gguf_windows(const GgufReader& reader, ModelConfig& config, int64_t period,
                       std::optional<double> local_theta);
// Every layer has experts, as its feed-forward part or beside one.
void read_gguf_experts(const GgufReader& reader, ModelConfig& config,
                       FeedForward part = FeedForward::experts);

}  // namespace nlac::config
