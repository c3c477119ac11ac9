// Reads the metadata of a GGUF file.
#include <algorithm>
#include <limits>
#include <locale>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "core/model/config_limits.h"
#include "core/model/families.h"

namespace nlac {

using namespace config;

namespace {

class GgufReader {
 public:
  explicit GgufReader(const GgufMetadata& metadata) : metadata_(metadata) {}

  // Keys are given without the architecture's prefix: integer("block_count").
  void set_architecture(const std::string& name) { prefix_ = name + "."; }

  std::string text(const std::string& key) const {
    const GgufValue* value = find(key);
    NLAC_REQUIRE(value != nullptr, format_error, "GGUF metadata: ", key, " is missing");
    const auto* text = std::get_if<std::string>(value);
    NLAC_REQUIRE(text != nullptr, format_error, "GGUF metadata: ", key, " is not a string");
    return *text;
  }

  std::optional<int64_t> integer_at(const std::string& key, int64_t min, int64_t max) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    int64_t number = min - 1;
    if (const auto* u = std::get_if<uint64_t>(value)) {
      if (*u <= static_cast<uint64_t>(INT64_MAX)) number = static_cast<int64_t>(*u);
    } else if (const auto* i = std::get_if<int64_t>(value)) {
      number = *i;
    }
    NLAC_REQUIRE(number >= min && number <= max, format_error, "GGUF metadata: ", key,
                 " is not an integer from ", min, " to ", max);
    return number;
  }
  std::optional<int64_t> integer(const char* key, int64_t min, int64_t max) const {
    return integer_at(prefix_ + key, min, max);
  }
  int64_t required_integer(const char* key, int64_t min, int64_t max) const {
    const auto value = integer(key, min, max);
    NLAC_REQUIRE(value.has_value(), format_error, "GGUF metadata: ", prefix_, key, " is missing");
    return *value;
  }

  std::optional<double> number(const char* key) const {
    const GgufValue* value = find(prefix_ + key);
    if (value == nullptr) return std::nullopt;
    const auto* number = std::get_if<double>(value);
    NLAC_REQUIRE(number != nullptr, format_error, "GGUF metadata: ", prefix_, key,
                 " is not a floating-point number");
    return shortest(*number);
  }
  double required_number(const char* key) const {
    const auto value = number(key);
    NLAC_REQUIRE(value.has_value(), format_error, "GGUF metadata: ", prefix_, key, " is missing");
    return *value;
  }

  // If the key exists, its value must be the one that nlac implies.
  void require_number(const char* key, double expected) const {
    const auto value = number(key);
    NLAC_REQUIRE(!value || *value == expected, format_error, "GGUF metadata: ", prefix_, key, " is ", *value,
                 "; only ", expected, " is supported");
  }
  void require_integer(const char* key, int64_t expected) const {
    const auto value = integer(key, 0, INT64_MAX - 1);
    NLAC_REQUIRE(!value || *value == expected, format_error, "GGUF metadata: ", prefix_, key, " is ", *value,
                 "; only ", expected, " is supported");
  }

  const GgufValue* find(const std::string& key) const {
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? nullptr : &found->second;
  }

  std::string full(const char* key) const { return prefix_ + key; }

 private:
  // A float32 in the file was a decimal in the model's configuration: 9.99999974e-06 was written as
  // 1e-5.
  static double shortest(double number) {
    const auto narrow = static_cast<float>(number);
    if (static_cast<double>(narrow) != number) return number;
    // Streams, because std::to_chars and std::from_chars for floating point need macOS 13.3 and LLVM 20.
    for (int digits = 1; digits <= std::numeric_limits<float>::max_digits10; ++digits) {
      std::stringstream decimal;
      decimal.imbue(std::locale::classic());
      decimal.precision(digits);
      decimal << narrow;
      double value = 0;
      if (decimal >> value && static_cast<float>(value) == narrow) return value;
    }
    return number;  // not finite
  }

  const GgufMetadata& metadata_;
  std::string prefix_;
};

void read_gguf_rope(const GgufReader& reader, ModelConfig& config) {
  config.rope.theta = reader.number("rope.freq_base").value_or(10000.0);
  reader.require_integer("rope.dimension_count", config.head_dim);
  const std::string type_key = reader.full("rope.scaling.type");
  const std::string type = reader.find(type_key) != nullptr ? reader.text(type_key) : "none";
  if (const auto factor = reader.number("rope.scale_linear"); type == "none" && factor && *factor != 1.0) {
    config.rope.scaling = RopeScaling::linear;  // the form of files before rope.scaling.type
    config.rope.factor = *factor;
  } else if (type == "none") {
    config.rope.scaling = RopeScaling::none;
  } else if (type == "linear") {
    config.rope.scaling = RopeScaling::linear;
    config.rope.factor = reader.required_number("rope.scaling.factor");
  } else if (type == "yarn") {
    config.rope.scaling = RopeScaling::yarn;
    config.rope.factor = reader.required_number("rope.scaling.factor");
    config.rope.original_max_positions =
        reader.integer("rope.scaling.original_context_length", 1, kMaxPositions)
            .value_or(config.max_positions);
    config.rope.beta_fast = reader.number("rope.scaling.yarn_beta_fast").value_or(32.0);
    config.rope.beta_slow = reader.number("rope.scaling.yarn_beta_slow").value_or(1.0);
    reader.require_number("rope.scaling.yarn_ext_factor", 1.0);
    reader.require_number("rope.scaling.yarn_attn_factor", 1.0);
    reader.require_number("rope.scaling.attn_factor", 1.0);
    reader.require_number("rope.scaling.yarn_log_multiplier", 0.0);
  } else {
    fail(format_error, "GGUF metadata: ", type_key, " is ", printable(type),
         "; none, linear and yarn are supported");
  }
}

int64_t gguf_vocab_size(const GgufReader& reader) {
  if (const auto size = reader.integer("vocab_size", 1, kMaxVocab)) return *size;
  const GgufValue* value = reader.find("tokenizer.ggml.tokens");
  const auto* tokens = value != nullptr ? std::get_if<std::vector<std::string>>(value) : nullptr;
  NLAC_REQUIRE(tokens != nullptr && !tokens->empty() && tokens->size() <= static_cast<size_t>(kMaxVocab),
               format_error, "GGUF metadata: neither ", reader.full("vocab_size"),
               " nor tokenizer.ggml.tokens says how many tokens "
               "there are");
  return static_cast<int64_t>(tokens->size());
}

}  // namespace

ModelConfig ModelConfig::from_gguf(const GgufMetadata& metadata, bool has_output_tensor) {
  GgufReader reader(metadata);
  const std::string architecture = reader.text("general.architecture");
  const FamilyEntry* entry = nullptr;
  std::string known;
  for (const FamilyEntry* candidate : all_families()) {
    if (candidate->gguf_architecture == nullptr) continue;
    if (architecture == candidate->gguf_architecture) entry = candidate;
    known += (known.empty() ? "" : ", ") + std::string(candidate->gguf_architecture);
  }
  NLAC_REQUIRE(entry != nullptr, format_error, "GGUF metadata: general.architecture is ",
               printable(architecture), "; supported are ", known);
  reader.set_architecture(architecture);

  ModelConfig config;
  config.family = entry->family;
  config.activation = entry->activation;
  config.vocab_size = gguf_vocab_size(reader);
  config.hidden_size = reader.required_integer("embedding_length", 1, kMaxWidth);
  config.intermediate_size = reader.required_integer("feed_forward_length", 1, kMaxWidth);
  config.layers = reader.required_integer("block_count", 1, kMaxLayers);
  config.heads = reader.required_integer("attention.head_count", 1, kMaxHeads);
  config.kv_heads = reader.integer("attention.head_count_kv", 1, kMaxHeads).value_or(config.heads);
  config.max_positions = reader.required_integer("context_length", 1, kMaxPositions);
  if (const auto head_dim = reader.integer("attention.key_length", 1, kMaxWidth)) {
    config.head_dim = *head_dim;
  } else {
    NLAC_REQUIRE(config.hidden_size % config.heads == 0, format_error, "GGUF metadata: ", config.hidden_size,
                 " hidden values do not divide into ", config.heads, " heads, and ",
                 reader.full("attention.key_length"), " is missing");
    config.head_dim = config.hidden_size / config.heads;
  }
  reader.require_integer("attention.value_length", config.head_dim);
  reader.require_integer("attention.sliding_window", 0);
  reader.require_integer("expert_count", 0);
  config.rms_norm_eps = reader.required_number("attention.layer_norm_rms_epsilon");
  config.tied_embeddings = !has_output_tensor;
  config.qkv_bias = config.family == Family::qwen2;
  config.qk_norm = config.family == Family::qwen3;
  read_gguf_rope(reader, config);

  const int64_t last = config.vocab_size - 1;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    const auto id = reader.integer_at(key, 0, last);
    if (id && std::find(config.eos_token_ids.begin(), config.eos_token_ids.end(), *id) ==
                  config.eos_token_ids.end()) {
      config.eos_token_ids.push_back(*id);
    }
  }
  config.bos_token_id = reader.integer_at("tokenizer.ggml.bos_token_id", 0, last).value_or(-1);
  config.pad_token_id = reader.integer_at("tokenizer.ggml.padding_token_id", 0, last).value_or(-1);
  validate(config, "GGUF metadata");
  return config;
}

}  // namespace nlac
