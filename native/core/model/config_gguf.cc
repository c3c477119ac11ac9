// Reads the metadata of a GGUF file.
#include <algorithm>
#include <cmath>
#include <limits>
#include <locale>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "core/model/config_gguf.h"
#include "core/model/families.h"

namespace nlac {

using namespace config;

// A float32 in the file was a decimal in the model's configuration: 9.99999974e-06 was written as
// 1e-5.
static double shortest(double number) {
  const auto narrow = static_cast<float>(number);
  if (static_cast<double>(narrow) != number) return number;
  // Streams, because std::to_chars and std::from_chars for floating point need macOS 13.3 and
  // LLVM 20.
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

const GgufValue* GgufReader::find(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

std::string GgufReader::text(const std::string& key) const {
  const GgufValue* value = find(key);
  NLAC_REQUIRE(value != nullptr, format_error, "GGUF metadata: ", key, " is missing");
  const auto* text = std::get_if<std::string>(value);
  NLAC_REQUIRE(text != nullptr, format_error, "GGUF metadata: ", key, " is not a string");
  return *text;
}

std::optional<int64_t> GgufReader::integer_at(const std::string& key, int64_t min, int64_t max) const {
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

std::optional<int64_t> GgufReader::integer(const char* key, int64_t min, int64_t max) const {
  return integer_at(full(key), min, max);
}

int64_t GgufReader::required_integer(const char* key, int64_t min, int64_t max) const {
  const auto value = integer(key, min, max);
  NLAC_REQUIRE(value.has_value(), format_error, "GGUF metadata: ", full(key), " is missing");
  return *value;
}

std::optional<std::vector<int64_t>> GgufReader::layer_integers(const char* key, int64_t layers, int64_t min,
                                                               int64_t max) const {
  const GgufValue* value = find(full(key));
  if (value == nullptr) return std::nullopt;
  std::vector<int64_t> numbers;
  if (const auto* u = std::get_if<std::vector<uint64_t>>(value)) {
    for (const uint64_t one : *u) numbers.push_back(static_cast<int64_t>(std::min<uint64_t>(one, INT64_MAX)));
  } else if (const auto* i = std::get_if<std::vector<int64_t>>(value)) {
    numbers = *i;
  } else {
    numbers.assign(static_cast<size_t>(layers), *integer(key, min, max));
  }
  NLAC_REQUIRE(static_cast<int64_t>(numbers.size()) == layers, format_error, "GGUF metadata: ", full(key),
               " does not have one entry for each of ", layers, " layers");
  for (const int64_t one : numbers)
    NLAC_REQUIRE(one >= min && one <= max, format_error, "GGUF metadata: ", full(key), " has ", one,
                 ", not an integer from ", min, " to ", max);
  return numbers;
}

std::optional<double> GgufReader::number(const char* key) const {
  const GgufValue* value = find(full(key));
  if (value == nullptr) return std::nullopt;
  const auto* number = std::get_if<double>(value);
  NLAC_REQUIRE(number != nullptr, format_error, "GGUF metadata: ", full(key),
               " is not a floating-point number");
  return shortest(*number);
}

double GgufReader::required_number(const char* key) const {
  const auto value = number(key);
  NLAC_REQUIRE(value.has_value(), format_error, "GGUF metadata: ", full(key), " is missing");
  return *value;
}

bool GgufReader::boolean(const char* key, bool otherwise) const {
  const GgufValue* value = find(full(key));
  if (value == nullptr) return otherwise;
  const auto* flag = std::get_if<bool>(value);
  NLAC_REQUIRE(flag != nullptr, format_error, "GGUF metadata: ", full(key), " is not true or false");
  return *flag;
}

void GgufReader::require_number(const char* key, double expected) const {
  const auto value = number(key);
  NLAC_REQUIRE(!value || *value == expected, format_error, "GGUF metadata: ", full(key), " is ", *value,
               "; only ", expected, " is supported");
}

void GgufReader::require_integer(const char* key, int64_t expected) const {
  const auto value = integer(key, 0, INT64_MAX - 1);
  NLAC_REQUIRE(!value || *value == expected, format_error, "GGUF metadata: ", full(key), " is ", *value,
               "; only ", expected, " is supported");
}

std::vector<bool> GgufReader::windowed_layers(int64_t layers, int64_t period) const {
  const std::string key = full("attention.sliding_window_pattern");
  const GgufValue* value = find(key);
  if (value != nullptr) {
    if (const auto* list = std::get_if<std::vector<bool>>(value)) {
      NLAC_REQUIRE(static_cast<int64_t>(list->size()) == layers, format_error, "GGUF metadata: ", key,
                   " does not have one entry for each of ", layers, " layers");
      return *list;
    }
    period = *integer_at(key, 1, kMaxLayers);
  }
  std::vector<bool> windowed;
  for (int64_t l = 0; l < layers; ++l) windowed.push_back((l + 1) % period != 0);
  return windowed;
}

void config::read_gguf_windows(const GgufReader& reader, ModelConfig& config, int64_t period,
                               std::optional<double> local_theta) {
  if (local_theta)
    config.local_rope.emplace(
        RopeConfig{.theta = reader.number("rope.freq_base_swa").value_or(*local_theta)});
  const int64_t window = reader.integer("attention.sliding_window", 0, kMaxPositions).value_or(0);
  config.layer_kinds.assign(static_cast<size_t>(config.layers), LayerKind{});
  if (window == 0) return;
  const std::vector<bool> windowed = reader.windowed_layers(config.layers, period);
  for (size_t l = 0; l < windowed.size(); ++l)
    if (windowed[l])
      config.layer_kinds[l] = {.rotary = local_theta ? Rotary::local : Rotary::global, .window = window};
}

void config::read_gguf_experts(const GgufReader& reader, ModelConfig& config, FeedForward part) {
  ExpertsShape& experts = config.experts;
  experts.count = reader.required_integer("expert_count", 1, kMaxExperts);
  experts.per_token = reader.required_integer("expert_used_count", 1, experts.count);
  experts.intermediate = reader.required_integer("expert_feed_forward_length", 1, kMaxWidth);
  experts.normalised = reader.boolean("expert_weights_norm", true);
  experts.balance = 0.001;
  config.layer_kinds.resize(static_cast<size_t>(config.layers));
  for (LayerKind& kind : config.layer_kinds) kind.feed_forward = part;
}

namespace {

// The scheme of config.rope. A family may set its dimensions afterwards.
void read_gguf_rope(const GgufReader& reader, ModelConfig& config) {
  config.rope.theta = reader.number("rope.freq_base").value_or(10000.0);
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
    // Converters write the factor that yarn implies, or 1, with the same meaning.
    const double implied = 0.1 * std::log(config.rope.factor) + 1;
    for (const char* key : {"rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor"}) {
      const double factor = reader.number(key).value_or(1.0);
      if (std::abs(factor - implied) > 1e-6) reader.require_number(key, 1.0);
    }
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

// Refuses what the file says and `config` does not.
void require_all_read(const GgufReader& reader, const ModelConfig& config,
                      const std::optional<std::vector<int64_t>>& kv_heads,
                      const std::optional<std::vector<int64_t>>& widths) {
  NLAC_REQUIRE(config.intermediate_size > 0, format_error,
               "GGUF metadata: ", reader.full("feed_forward_length"), " is missing");
  bool windows = false;
  for (int64_t l = 0; l < config.layers; ++l) {
    const LayerKind kind = config.kind(l);
    windows = windows || kind.window > 0;
    const auto same = [&](const char* key, const std::optional<std::vector<int64_t>>& all, int64_t own) {
      NLAC_REQUIRE(!all || (*all)[static_cast<size_t>(l)] == own, format_error,
                   "GGUF metadata: ", reader.full(key), " differs between layers, which is not supported");
    };
    same("attention.head_count_kv", kv_heads, config.kv_heads_of(kind));
    if (kind.feed_forward != FeedForward::experts)
      same("feed_forward_length", widths, config.intermediate_of(kind));
  }
  if (!windows) reader.require_integer("attention.sliding_window", 0);
  if (config.experts.count == 0) reader.require_integer("expert_count", 0);
  if (config.rope.mscale_all_dim == 0) reader.require_number("rope.scaling.yarn_log_multiplier", 0.0);
  reader.require_integer("rope.dimension_count",
                         config.rope.dimensions > 0 ? config.rope.dimensions : config.head_dim);
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
  config.layers = reader.required_integer("block_count", 1, kMaxLayers);
  // The last blocks may predict further tokens.
  const int64_t blocks = config.layers;
  config.layers -= reader.integer("nextn_predict_layers", 0, blocks - 1).value_or(0);
  config.heads = reader.required_integer("attention.head_count", 1, kMaxHeads);
  // A family sets what differs between its layers, and the width of an MLP that none of them has.
  const auto kv_heads = reader.layer_integers("attention.head_count_kv", blocks, 1, kMaxHeads);
  const auto widths = reader.layer_integers("feed_forward_length", blocks, 1, kMaxWidth);
  config.kv_heads = kv_heads ? kv_heads->front() : config.heads;
  config.intermediate_size = widths ? widths->front() : 0;
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
  config.rms_norm_eps = reader.required_number("attention.layer_norm_rms_epsilon");
  config.tied_embeddings = !has_output_tensor;
  read_gguf_rope(reader, config);
  if (entry->read_gguf != nullptr) entry->read_gguf(reader, config);
  require_all_read(reader, config, kv_heads, widths);

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
  drop_plain_kinds(config);
  validate(config, "GGUF metadata");
  return config;
}

}  // namespace nlac
