// Reads a Hugging Face config.json.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "core/model/config_limits.h"

namespace nlac {

using namespace config;

namespace {

using Json = nlohmann::json;

// One object of config.json. A key that is null counts as absent, as it does in transformers.
class Section {
 public:
  Section(const Json& json, std::string prefix) : json_(json), prefix_(std::move(prefix)) {}

  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  std::string where(const char* key) const { return "config.json: " + prefix_ + key; }

  std::optional<int64_t> integer(const char* key, int64_t min, int64_t max) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    NLAC_REQUIRE(value->is_number_integer() && in_range(*value, min, max), format_error, where(key), " is ",
                 shown(*value), ", not an integer from ", min, " to ", max);
    return value->get<int64_t>();
  }
  int64_t required_integer(const char* key, int64_t min, int64_t max) const {
    const auto value = integer(key, min, max);
    NLAC_REQUIRE(value.has_value(), format_error, where(key), " is missing");
    return *value;
  }

  std::optional<double> number(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    NLAC_REQUIRE(value->is_number(), format_error, where(key), " is ", shown(*value), ", not a number");
    return value->get<double>();
  }
  double required_number(const char* key) const {
    const auto value = number(key);
    NLAC_REQUIRE(value.has_value(), format_error, where(key), " is missing");
    return *value;
  }

  bool boolean(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    NLAC_REQUIRE(value->is_boolean(), format_error, where(key), " is ", shown(*value), ", not true or false");
    return value->get<bool>();
  }

  std::optional<std::string> text(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    NLAC_REQUIRE(value->is_string(), format_error, where(key), " is ", shown(*value), ", not a string");
    return value->get<std::string>();
  }

  static std::string shown(const Json& value) { return printable(value.dump()); }

 private:
  static bool in_range(const Json& value, int64_t min, int64_t max) {
    // An unsigned value above int64's range would wrap in get<int64_t>().
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
    return value.get<int64_t>() >= min && value.get<int64_t>() <= max;
  }

  const Json& json_;
  std::string prefix_;
};

Family json_family(const Section& root) {
  std::string name;
  if (const Json* list = root.find("architectures"); list != nullptr) {
    NLAC_REQUIRE(list->is_array() && list->size() == 1 && list->front().is_string(), format_error,
                 root.where("architectures"), " is ", Section::shown(*list), ", not a list of one name");
    name = list->front().get<std::string>();
  } else {
    const auto type = root.text("model_type");
    NLAC_REQUIRE(type.has_value(), format_error, root.where("architectures"), " is missing");
    name = *type;
  }
  for (const FamilyNames& names : families) {
    if (name == names.architecture || name == names.model_type) return names.family;
  }
  fail(format_error, root.where("architectures"), " is ", printable(name),
       "; LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM are supported");
}

void read_json_rope(const Section& root, ModelConfig& config) {
  // transformers 5 keeps everything in rope_parameters; before, rope_theta stood alone beside
  // rope_scaling.
  static const Json nothing = Json::object();
  const Json* parameters = root.find("rope_parameters");
  const Json* scaling = root.find("rope_scaling");
  const char* name = scaling != nullptr ? "rope_scaling" : "rope_parameters";
  const Json* chosen = scaling != nullptr ? scaling : parameters;
  NLAC_REQUIRE(chosen == nullptr || chosen->is_object(), format_error, root.where(name), " is ",
               Section::shown(*chosen), ", not an object");
  const Section rope(chosen != nullptr ? *chosen : nothing, std::string(name) + ".");

  std::optional<double> theta = rope.number("rope_theta");
  if (!theta) theta = root.number("rope_theta");
  if (!theta && parameters != nullptr && parameters->is_object()) {
    theta = Section(*parameters, "rope_parameters.").number("rope_theta");
  }
  config.rope_theta = theta.value_or(10000.0);

  for (const Section* section : {&root, &rope}) {
    const double part = section->number("partial_rotary_factor").value_or(1.0);
    NLAC_REQUIRE(part == 1.0, format_error, section->where("partial_rotary_factor"), " is ", part,
                 "; only 1 is supported");
  }
  if (chosen != nullptr) {
    for (const auto& [key, value] : chosen->items()) {
      NLAC_REQUIRE(!value.is_object(), format_error, rope.where(printable(key).c_str()),
                   ": rotary parameters for each kind of layer are not supported");
    }
  }

  std::string type = "default";
  if (const auto value = rope.text("rope_type")) {
    type = *value;
  } else if (const auto older = rope.text("type")) {
    type = *older;
  }
  const int64_t original = root.integer("original_max_position_embeddings", 1, kMaxPositions)
                               .value_or(rope.integer("original_max_position_embeddings", 1, kMaxPositions)
                                             .value_or(config.max_positions));
  if (type == "default") {
    config.rope_scaling = RopeScaling::none;
  } else if (type == "linear") {
    config.rope_scaling = RopeScaling::linear;
    config.rope_factor = rope.required_number("factor");
  } else if (type == "llama3") {
    config.rope_scaling = RopeScaling::llama3;
    config.rope_factor = rope.required_number("factor");
    config.rope_low_freq_factor = rope.required_number("low_freq_factor");
    config.rope_high_freq_factor = rope.required_number("high_freq_factor");
    config.rope_original_max_positions = original;
  } else if (type == "yarn") {
    config.rope_scaling = RopeScaling::yarn;
    config.rope_original_max_positions = original;
    config.rope_factor = rope.number("factor").value_or(static_cast<double>(config.max_positions) /
                                                        static_cast<double>(original));
    config.rope_attention_factor = rope.number("attention_factor").value_or(0.0);
    config.rope_mscale = rope.number("mscale").value_or(0.0);
    config.rope_mscale_all_dim = rope.number("mscale_all_dim").value_or(0.0);
    config.rope_truncate = rope.boolean("truncate", true);
    const double fast = rope.number("beta_fast").value_or(0.0), slow = rope.number("beta_slow").value_or(0.0);
    if (fast != 0.0) config.rope_beta_fast = fast;  // 0 means the default, as in transformers
    if (slow != 0.0) config.rope_beta_slow = slow;
  } else {
    fail(format_error, rope.where("rope_type"), " is ", printable(type),
         "; default, linear, llama3 and yarn are supported");
  }
}

void read_json_token_ids(const Section& root, ModelConfig& config) {
  if (const Json* eos = root.find("eos_token_id"); eos != nullptr) {
    const Json list = eos->is_array() ? *eos : Json::array({*eos});
    for (const Json& id : list) {
      NLAC_REQUIRE(id.is_number_integer(), format_error, root.where("eos_token_id"), " is ",
                   Section::shown(*eos), ", not an id or a list of ids");
      const Json one = {{"eos_token_id", id}};
      config.eos_token_ids.push_back(
          Section(one, "").required_integer("eos_token_id", 0, config.vocab_size - 1));
    }
  }
  config.bos_token_id = root.integer("bos_token_id", -1, config.vocab_size - 1).value_or(-1);
  config.pad_token_id = root.integer("pad_token_id", -1, config.vocab_size - 1).value_or(-1);
}

// nlac has no sliding-window attention.
void refuse_sliding_window(const Section& root) {
  NLAC_REQUIRE(!root.boolean("use_sliding_window", false), format_error, root.where("use_sliding_window"),
               " is true; sliding-window attention is not supported");
  const Json* kinds = root.find("layer_types");
  if (kinds == nullptr) return;
  NLAC_REQUIRE(kinds->is_array(), format_error, root.where("layer_types"), " is not a list");
  for (const Json& kind : *kinds) {
    NLAC_REQUIRE(kind == "full_attention", format_error, root.where("layer_types"), " holds ",
                 Section::shown(kind), "; only full_attention is supported");
  }
}

}  // namespace

ModelConfig ModelConfig::from_json(const std::string& config_json) {
  const Json json = parse_json(config_json, "config.json");
  NLAC_REQUIRE(json.is_object(), format_error, "config.json: not a JSON object");
  const Section root(json, "");

  ModelConfig config;
  config.family = json_family(root);
  const bool llama = config.family == Family::llama;
  config.vocab_size = root.required_integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = root.required_integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = root.required_integer("intermediate_size", 1, kMaxWidth);
  config.layers = root.required_integer("num_hidden_layers", 1, kMaxLayers);
  config.heads = root.required_integer("num_attention_heads", 1, kMaxHeads);
  config.kv_heads = root.integer("num_key_value_heads", 1, kMaxHeads).value_or(config.heads);
  config.max_positions = root.required_integer("max_position_embeddings", 1, kMaxPositions);
  if (const auto head_dim = root.integer("head_dim", 1, kMaxWidth)) {
    config.head_dim = *head_dim;
  } else if (config.family == Family::qwen3) {
    config.head_dim = 128;  // the family's default for every hidden size
  } else {
    NLAC_REQUIRE(config.hidden_size % config.heads == 0, format_error, root.where("hidden_size"), ": ",
                 config.hidden_size, " does not divide into ", config.heads,
                 " heads, and head_dim is missing");
    config.head_dim = config.hidden_size / config.heads;
  }
  config.rms_norm_eps = root.number("rms_norm_eps").value_or(1e-6);
  config.tied_embeddings = root.boolean("tie_word_embeddings", false);

  const bool attention_bias = config.family != Family::qwen2 && root.boolean("attention_bias", false);
  config.qkv_bias = config.family == Family::qwen2 || attention_bias;
  config.output_bias = attention_bias;
  config.mlp_bias = llama && root.boolean("mlp_bias", false);
  config.qk_norm = config.family == Family::qwen3;

  const std::string activation = root.text("hidden_act").value_or("silu");
  NLAC_REQUIRE(activation == "silu", format_error, root.where("hidden_act"), " is ", printable(activation),
               "; only silu is supported");
  NLAC_REQUIRE(root.find("quantization_config") == nullptr, format_error, root.where("quantization_config"),
               ": quantized weights of this kind are not supported");
  refuse_sliding_window(root);
  read_json_rope(root, config);
  read_json_token_ids(root, config);
  validate(config, "config.json");
  return config;
}

}  // namespace nlac
