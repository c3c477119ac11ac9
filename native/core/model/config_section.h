// One object of a config.json, read key by key. Errors are ERR_MODEL_FORMAT and name the key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/model/config_limits.h"

namespace nlac::config {

// A key that is null counts as absent, as it does in transformers. `json` outlives it.
class Section {
 public:
  Section(const nlohmann::json& json, std::string prefix) : json_(json), prefix_(std::move(prefix)) {}

  const nlohmann::json& json() const { return json_; }
  // Null: absent.
  const nlohmann::json* find(const char* key) const;
  // "config.json: PREFIXkey"
  std::string where(const char* key) const { return "config.json: " + prefix_ + key; }

  std::optional<int64_t> integer(const char* key, int64_t min, int64_t max) const;
  int64_t required_integer(const char* key, int64_t min, int64_t max) const;
  std::optional<double> number(const char* key) const;
  double required_number(const char* key) const;
  bool boolean(const char* key, bool otherwise) const;
  std::optional<std::string> text(const char* key) const;

  static std::string shown(const nlohmann::json& value);

 private:
  const nlohmann::json& json_;
  std::string prefix_;
};

// Reads one scheme of rotary positions from an object of transformers' form. A missing theta stays
// what it is. `config` has its sizes.
void read_rope(const Section& root, const Section& rope, const ModelConfig& config, RopeConfig& into);
// Reads the scheme that all layers share, from rope_parameters or from its older keys.
void read_shared_rope(const Section& root, ModelConfig& config);
// Reads two schemes: config.rope of full attention, config.local_rope of layers with a window. They
// are rope_parameters.full_attention and .sliding_attention, or in older files rope_theta and
// rope_scaling, and `local_theta_key` (null: rope_theta).
void read_two_ropes(const Section& root, ModelConfig& config, const char* local_theta_key);
// Sets layer_kinds from layer_types, or if that is missing, to windows of `window` tokens in all
// layers but every `pattern`-th. Layers with a window have the local scheme if there is one.
void read_layer_types(const Section& root, ModelConfig& config, int64_t window, int64_t pattern);
// The scores' window, for families in which null means none and a missing key `otherwise` (0:
// none).
int64_t read_window(const Section& root, int64_t otherwise);
// Requires that no layer has a sliding window.
void refuse_sliding_window(const Section& root);
// Reads the sizes of a mixture of experts. `config` has the values of missing keys.
void read_experts(const Section& root, ModelConfig& config);
// Reads attention_bias, which biases all four projections of attention.
void read_attention_bias(const Section& root, ModelConfig& config);

// The object that read_rope reads, without theta.
nlohmann::ordered_json rope_json(const RopeConfig& rope);
// Writes the shared scheme in both spellings, so that transformers of before and after 5 read the
// same model.
void write_shared_rope(const ModelConfig& config, nlohmann::ordered_json& json);
// Write what the readers of the same names read.
void write_two_ropes(const ModelConfig& config, nlohmann::ordered_json& json, const char* local_theta_key);
void write_layer_types(const ModelConfig& config, nlohmann::ordered_json& json);
void write_experts(const ModelConfig& config, nlohmann::ordered_json& json);

}  // namespace nlac::config
