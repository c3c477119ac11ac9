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

  // Which layers have a window: a list with an entry for each layer, or every layer but each
  // period-th.
  std::vector<bool> windowed_layers(int64_t layers, int64_t period) const {
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
  bool boolean(const char* key, bool otherwise) const {
    const GgufValue* value = find(full(key));
    if (value == nullptr) return otherwise;
    const auto* flag = std::get_if<bool>(value);
    NLAC_REQUIRE(flag != nullptr, format_error, "GGUF metadata: ", full(key), " is not true or false");
    return *flag;
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

  const GgufMetadata& metadata_;
  std::string prefix_;
};

bool is_qwen3_5(const ModelConfig& config) {
  return config.family == Family::qwen3_5 || config.family == Family::qwen3_5_moe;
}

void read_gguf_rope(const GgufReader& reader, ModelConfig& config) {
  config.rope.theta = reader.number("rope.freq_base").value_or(10000.0);
  if (is_qwen3_5(config))
    config.rope.dimensions =
        reader.integer("rope.dimension_count", 2, config.head_dim).value_or(config.head_dim / 4);
  else
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
    // Converters write the factor that yarn implies, or 1, with the same meaning.
    const double implied = 0.1 * std::log(config.rope.factor) + 1;
    for (const char* key : {"rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor"}) {
      const double factor = reader.number(key).value_or(1.0);
      if (std::abs(factor - implied) > 1e-6) reader.require_number(key, 1.0);
    }
    if (config.family == Family::ministral3 && reader.number("rope.scaling.yarn_log_multiplier") == 1.0)
      config.rope.mscale = config.rope.mscale_all_dim = 1;
    else
      reader.require_number("rope.scaling.yarn_log_multiplier", 0.0);
  } else {
    fail(format_error, "GGUF metadata: ", type_key, " is ", printable(type),
         "; none, linear and yarn are supported");
  }
}

// Windows as the file says, and with `local_theta` their own rotary scheme, which is not scaled.
void read_gguf_windows(const GgufReader& reader, ModelConfig& config, int64_t period,
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

// Every layer has experts.
void read_gguf_experts(const GgufReader& reader, ModelConfig& config) {
  ExpertsShape& experts = config.experts;
  experts.count = reader.required_integer("expert_count", 1, kMaxExperts);
  experts.per_token = reader.required_integer("expert_used_count", 1, experts.count);
  experts.intermediate = reader.required_integer("expert_feed_forward_length", 1, kMaxWidth);
  experts.normalised = reader.boolean("expert_weights_norm", true);
  experts.balance = 0.001;
  for (LayerKind& kind : config.layer_kinds) kind.feed_forward = FeedForward::experts;
}

// Gated delta nets in all layers but every few.
void read_gguf_delta(const GgufReader& reader, ModelConfig& config) {
  GatedDeltaShape& delta = config.delta;
  delta.kernel = reader.required_integer("ssm.conv_kernel", 2, 64);
  delta.key_dim = reader.required_integer("ssm.state_size", 1, kMaxWidth);
  delta.key_heads = reader.required_integer("ssm.group_count", 1, kMaxHeads);
  delta.heads = reader.required_integer("ssm.time_step_rank", 1, kMaxHeads);
  const int64_t values = reader.required_integer("ssm.inner_size", 1, kMaxHeads * kMaxWidth);
  NLAC_REQUIRE(values % delta.heads == 0, format_error, "GGUF metadata: ", reader.full("ssm.inner_size"),
               " is ", values, ", which does not divide among ", delta.heads, " heads");
  delta.value_dim = values / delta.heads;
  delta.eps = config.rms_norm_eps;
  const int64_t interval = reader.integer("full_attention_interval", 1, kMaxLayers).value_or(4);
  config.layer_kinds.resize(static_cast<size_t>(config.layers));
  for (size_t l = 0; l < config.layer_kinds.size(); ++l)
    if ((static_cast<int64_t>(l) + 1) % interval != 0) config.layer_kinds[l].mixer = Mixer::delta;
}

// What converters leave out, because a family's models all have it.
void read_gguf_family(const GgufReader& reader, ModelConfig& config) {
  switch (config.family) {
    case Family::qwen2: config.qkv_bias = true; break;
    case Family::qwen3: config.qk_norm = true; break;
    case Family::qwen3_moe:
      config.qk_norm = true;
      config.layer_kinds.resize(static_cast<size_t>(config.layers));
      read_gguf_experts(reader, config);
      break;
    case Family::qwen3_5:
    case Family::qwen3_5_moe:
      config.qk_norm = config.norm_plus_one = config.gated_attention = true;
      read_gguf_delta(reader, config);
      if (config.family == Family::qwen3_5) break;
      read_gguf_experts(reader, config);
      config.experts.shared = reader.required_integer("expert_shared_feed_forward_length", 1, kMaxWidth);
      break;
    case Family::gemma3:
      config.qk_norm = config.norm_plus_one = true;
      config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
      // Gemma 3 27B, the one of 62 layers, scales its scores by the mean width of a head.
      if (config.layers == 62)
        config.attention_scalar = static_cast<double>(config.hidden_size) / static_cast<double>(config.heads);
      if (config.attention_scalar == static_cast<double>(config.head_dim)) config.attention_scalar = 0;
      for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"})
        NLAC_REQUIRE(reader.find(reader.full(key)) == nullptr, format_error,
                     "GGUF metadata: ", reader.full(key), " is not supported");
      read_gguf_windows(reader, config, 6, 10000.0);
      break;
    case Family::olmo3:
      config.qk_norm = config.whole_qk_norm = true;
      read_gguf_windows(reader, config, 4, config.rope.theta);
      break;
    case Family::smollm3:
      config.layer_kinds.assign(static_cast<size_t>(config.layers), LayerKind{});
      for (size_t l = 3; l < config.layer_kinds.size(); l += 4) config.layer_kinds[l].rotary = Rotary::none;
      break;
    case Family::ministral3:
      config.rope.query_growth = reader.number("attention.temperature_scale").value_or(0.0);
      reader.require_integer("attention.temperature_length", config.rope.original_max_positions > 0
                                                                 ? config.rope.original_max_positions
                                                                 : config.max_positions);
      break;
    case Family::gpt_oss:
      config.attention_sinks = true;
      config.rope.truncate = false;
      read_gguf_windows(reader, config, 2, std::nullopt);
      read_gguf_experts(reader, config);
      config.experts.limit = 7, config.experts.alpha = 1.702;  // of all models so far; files do not say
      config.intermediate_size = config.experts.intermediate;
      break;
    case Family::llama:
    case Family::mistral:
    case Family::gemma4: break;  // no files of the last are read
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
  const bool mixture = config.family == Family::qwen3_moe || config.family == Family::qwen3_5_moe ||
                       config.family == Family::gpt_oss;
  config.intermediate_size = mixture  // its layers may all be experts
                                 ? reader.integer("feed_forward_length", 1, kMaxWidth)
                                       .value_or(config.family == Family::qwen3_moe ? 1 : 512)
                                 : reader.required_integer("feed_forward_length", 1, kMaxWidth);
  config.layers = reader.required_integer("block_count", 1, kMaxLayers);
  if (is_qwen3_5(config)) {  // The last blocks may predict further tokens.
    const int64_t further = reader.integer("nextn_predict_layers", 0, config.layers - 1).value_or(0);
    config.layers -= further;
  }
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
  if (config.family != Family::gemma3 && config.family != Family::olmo3 && config.family != Family::gpt_oss)
    reader.require_integer("attention.sliding_window", 0);
  if (!mixture) reader.require_integer("expert_count", 0);
  config.rms_norm_eps = reader.required_number("attention.layer_norm_rms_epsilon");
  config.tied_embeddings = !has_output_tensor;
  read_gguf_rope(reader, config);
  read_gguf_family(reader, config);

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
  config.to_json("float32");  // a checkpoint could not be written otherwise
  return config;
}

}  // namespace nlac
