#include "core/model/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"

namespace nlac {
namespace {

using Json = nlohmann::json;

constexpr const char* format_error = "ERR_MODEL_FORMAT";

// Bounds that no real model comes near, yet products of any two stay far from overflow.
constexpr int64_t most_vocab = int64_t{1} << 24;
constexpr int64_t most_width = int64_t{1} << 20;
constexpr int64_t most_layers = 4096;
constexpr int64_t most_heads = 8192;
constexpr int64_t most_positions = int64_t{1} << 31;

struct FamilyNames {
  Family family;
  const char* architecture;  // config.json's architectures[0]
  const char* model_type;    // config.json's model_type, and GGUF's general.architecture
};
constexpr FamilyNames families[] = {
    {Family::llama, "LlamaForCausalLM", "llama"},
    {Family::qwen2, "Qwen2ForCausalLM", "qwen2"},
    {Family::qwen3, "Qwen3ForCausalLM", "qwen3"},
};

const FamilyNames& names_of(Family family) {
  return *std::find_if(std::begin(families), std::end(families),
                       [&](const FamilyNames& names) { return names.family == family; });
}

// One object of config.json. A key that is null counts as absent, as it does in transformers.
class Section {
 public:
  Section(const Json& json, std::string prefix) : json_(json), prefix_(std::move(prefix)) {}

  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  std::string where(const char* key) const { return "config.json: " + prefix_ + key; }

  std::optional<int64_t> integer(const char* key, int64_t least, int64_t most) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    NLAC_REQUIRE(value->is_number_integer() && in_range(*value, least, most), format_error, where(key),
                 " is ", shown(*value), ", not an integer from ", least, " to ", most);
    return value->get<int64_t>();
  }
  int64_t required_integer(const char* key, int64_t least, int64_t most) const {
    const auto value = integer(key, least, most);
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
  static bool in_range(const Json& value, int64_t least, int64_t most) {
    // An unsigned value above int64's range would wrap in get<int64_t>().
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
    return value.get<int64_t>() >= least && value.get<int64_t>() <= most;
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
  // transformers 5 keeps everything in rope_parameters; before, rope_theta stood alone beside rope_scaling.
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
  const int64_t original = root.integer("original_max_position_embeddings", 1, most_positions)
                               .value_or(rope.integer("original_max_position_embeddings", 1, most_positions)
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

// A sliding window changes what attention sees; nlac's never slides.
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

// What both sources must satisfy; `where` opens the message.
void validate(const ModelConfig& config, const char* where) {
  const auto positive = [&](double value, const char* what) {
    NLAC_REQUIRE(std::isfinite(value) && value > 0, format_error, where, ": ", what, " is ", value,
                 ", not a positive number");
  };
  NLAC_REQUIRE(config.heads % config.kv_heads == 0, format_error, where, ": ", config.heads,
               " attention heads do not divide among ", config.kv_heads, " key-value heads");
  NLAC_REQUIRE(config.head_dim % 2 == 0, format_error, where, ": a head dimension of ", config.head_dim,
               " is odd, which rotary positions do not allow");
  NLAC_REQUIRE(std::isfinite(config.rms_norm_eps) && config.rms_norm_eps >= 0 && config.rms_norm_eps < 1,
               format_error, where, ": the norm's epsilon is ", config.rms_norm_eps, ", not from 0 to 1");
  positive(config.rope_theta, "the rotary base (rope_theta)");
  positive(config.rope_factor, "the rotary scaling factor");
  if (config.rope_scaling == RopeScaling::llama3) {
    positive(config.rope_low_freq_factor, "low_freq_factor");
    positive(config.rope_high_freq_factor, "high_freq_factor");
    NLAC_REQUIRE(config.rope_high_freq_factor > config.rope_low_freq_factor, format_error, where,
                 ": high_freq_factor ", config.rope_high_freq_factor, " is not above low_freq_factor ",
                 config.rope_low_freq_factor);
  }
  if (config.rope_scaling == RopeScaling::yarn) {
    positive(config.rope_beta_fast, "beta_fast");
    positive(config.rope_beta_slow, "beta_slow");
    NLAC_REQUIRE(config.rope_theta != 1.0, format_error, where, ": rope_theta is 1, which yarn cannot scale");
    for (const double value :
         {config.rope_attention_factor, config.rope_mscale, config.rope_mscale_all_dim}) {
      NLAC_REQUIRE(std::isfinite(value) && value >= 0, format_error, where,
                   ": attention_factor, mscale and mscale_all_dim must be 0 or more, not ", value);
    }
  }
}

// --- GGUF --------------------------------------------------------------------------------------------

class GgufReader {
 public:
  explicit GgufReader(const GgufMetadata& metadata) : metadata_(metadata) {}

  // Keys of the architecture are written without its name: integer("block_count").
  void set_architecture(const std::string& name) { prefix_ = name + "."; }

  std::string text(const std::string& key) const {
    const GgufValue* value = find(key);
    NLAC_REQUIRE(value != nullptr, format_error, "GGUF metadata: ", key, " is missing");
    const auto* text = std::get_if<std::string>(value);
    NLAC_REQUIRE(text != nullptr, format_error, "GGUF metadata: ", key, " is not a string");
    return *text;
  }

  std::optional<int64_t> integer_at(const std::string& key, int64_t least, int64_t most) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    int64_t number = least - 1;
    if (const auto* u = std::get_if<uint64_t>(value)) {
      if (*u <= static_cast<uint64_t>(INT64_MAX)) number = static_cast<int64_t>(*u);
    } else if (const auto* i = std::get_if<int64_t>(value)) {
      number = *i;
    }
    NLAC_REQUIRE(number >= least && number <= most, format_error, "GGUF metadata: ", key,
                 " is not an integer from ", least, " to ", most);
    return number;
  }
  std::optional<int64_t> integer(const char* key, int64_t least, int64_t most) const {
    return integer_at(prefix_ + key, least, most);
  }
  int64_t required_integer(const char* key, int64_t least, int64_t most) const {
    const auto value = integer(key, least, most);
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

  // A key that must hold what nlac computes with anyway, if it is there at all.
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
  // A float32 in the file was a decimal in the model's configuration: 9.99999974e-06 was written as 1e-5.
  static double shortest(double number) {
    const auto narrow = static_cast<float>(number);
    if (static_cast<double>(narrow) != number) return number;
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, narrow).ptr;
    double decimal = number;
    std::from_chars(text, end, decimal);
    return decimal;
  }

  const GgufMetadata& metadata_;
  std::string prefix_;
};

void read_gguf_rope(const GgufReader& reader, ModelConfig& config) {
  config.rope_theta = reader.number("rope.freq_base").value_or(10000.0);
  reader.require_integer("rope.dimension_count", config.head_dim);
  const std::string type_key = reader.full("rope.scaling.type");
  const std::string type = reader.find(type_key) != nullptr ? reader.text(type_key) : "none";
  if (const auto factor = reader.number("rope.scale_linear"); type == "none" && factor && *factor != 1.0) {
    config.rope_scaling = RopeScaling::linear;  // as files of before rope.scaling.type say it
    config.rope_factor = *factor;
  } else if (type == "none") {
    config.rope_scaling = RopeScaling::none;
  } else if (type == "linear") {
    config.rope_scaling = RopeScaling::linear;
    config.rope_factor = reader.required_number("rope.scaling.factor");
  } else if (type == "yarn") {
    config.rope_scaling = RopeScaling::yarn;
    config.rope_factor = reader.required_number("rope.scaling.factor");
    config.rope_original_max_positions =
        reader.integer("rope.scaling.original_context_length", 1, most_positions)
            .value_or(config.max_positions);
    config.rope_beta_fast = reader.number("rope.scaling.yarn_beta_fast").value_or(32.0);
    config.rope_beta_slow = reader.number("rope.scaling.yarn_beta_slow").value_or(1.0);
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
  if (const auto size = reader.integer("vocab_size", 1, most_vocab)) return *size;
  const GgufValue* value = reader.find("tokenizer.ggml.tokens");
  const auto* tokens = value != nullptr ? std::get_if<std::vector<std::string>>(value) : nullptr;
  NLAC_REQUIRE(tokens != nullptr && !tokens->empty() && tokens->size() <= static_cast<size_t>(most_vocab),
               format_error, "GGUF metadata: neither ", reader.full("vocab_size"),
               " nor tokenizer.ggml.tokens says how many tokens "
               "there are");
  return static_cast<int64_t>(tokens->size());
}

}  // namespace

ModelConfig ModelConfig::from_json(const std::string& config_json) {
  const Json json = parse_json(config_json, "config.json");
  NLAC_REQUIRE(json.is_object(), format_error, "config.json: not a JSON object");
  const Section root(json, "");

  ModelConfig config;
  config.family = json_family(root);
  const bool llama = config.family == Family::llama;
  config.vocab_size = root.required_integer("vocab_size", 1, most_vocab);
  config.hidden_size = root.required_integer("hidden_size", 1, most_width);
  config.intermediate_size = root.required_integer("intermediate_size", 1, most_width);
  config.layers = root.required_integer("num_hidden_layers", 1, most_layers);
  config.heads = root.required_integer("num_attention_heads", 1, most_heads);
  config.kv_heads = root.integer("num_key_value_heads", 1, most_heads).value_or(config.heads);
  config.max_positions = root.required_integer("max_position_embeddings", 1, most_positions);
  if (const auto head_dim = root.integer("head_dim", 1, most_width)) {
    config.head_dim = *head_dim;
  } else if (config.family == Family::qwen3) {
    config.head_dim = 128;  // the family's default, whatever the hidden size
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

ModelConfig ModelConfig::from_gguf(const GgufMetadata& metadata, bool has_output_tensor) {
  GgufReader reader(metadata);
  const std::string architecture = reader.text("general.architecture");
  const auto names = std::find_if(std::begin(families), std::end(families),
                                  [&](const FamilyNames& known) { return architecture == known.model_type; });
  NLAC_REQUIRE(names != std::end(families), format_error, "GGUF metadata: general.architecture is ",
               printable(architecture), "; llama, qwen2 and qwen3 are supported");
  reader.set_architecture(architecture);

  ModelConfig config;
  config.family = names->family;
  config.vocab_size = gguf_vocab_size(reader);
  config.hidden_size = reader.required_integer("embedding_length", 1, most_width);
  config.intermediate_size = reader.required_integer("feed_forward_length", 1, most_width);
  config.layers = reader.required_integer("block_count", 1, most_layers);
  config.heads = reader.required_integer("attention.head_count", 1, most_heads);
  config.kv_heads = reader.integer("attention.head_count_kv", 1, most_heads).value_or(config.heads);
  config.max_positions = reader.required_integer("context_length", 1, most_positions);
  if (const auto head_dim = reader.integer("attention.key_length", 1, most_width)) {
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

std::string ModelConfig::to_json(const std::string& dtype) const {
  NLAC_REQUIRE(dtype == "float32" || dtype == "bfloat16", "ERR_VALUE", "dtype ", printable(dtype),
               " is neither float32 nor bfloat16");
  const bool qwen2 = family == Family::qwen2;
  NLAC_REQUIRE(qwen2 ? qkv_bias && !output_bias : qkv_bias == output_bias, format_error,
               "biases on only some attention projections cannot be written for ",
               names_of(family).architecture);
  NLAC_REQUIRE(!mlp_bias || family == Family::llama, format_error, "biases in the MLP cannot be written for ",
               names_of(family).architecture);
  NLAC_REQUIRE(qk_norm == (family == Family::qwen3), format_error, "query and key norms are Qwen3's alone");

  const auto id_or_null = [](int64_t id) {
    return id < 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(id);
  };
  nlohmann::ordered_json json;
  json["architectures"] = {names_of(family).architecture};
  json["model_type"] = names_of(family).model_type;
  json["torch_dtype"] = dtype;
  json["vocab_size"] = vocab_size;
  json["hidden_size"] = hidden_size;
  json["intermediate_size"] = intermediate_size;
  json["num_hidden_layers"] = layers;
  json["num_attention_heads"] = heads;
  json["num_key_value_heads"] = kv_heads;
  json["head_dim"] = head_dim;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = rms_norm_eps;
  json["max_position_embeddings"] = max_positions;
  json["tie_word_embeddings"] = tied_embeddings;
  if (!qwen2) json["attention_bias"] = output_bias;
  if (family == Family::llama) json["mlp_bias"] = mlp_bias;
  if (family != Family::llama) json["use_sliding_window"] = false;
  json["bos_token_id"] = id_or_null(bos_token_id);
  json["pad_token_id"] = id_or_null(pad_token_id);
  if (eos_token_ids.empty()) {
    json["eos_token_id"] = nullptr;
  } else if (eos_token_ids.size() == 1) {
    json["eos_token_id"] = eos_token_ids.front();
  } else {
    json["eos_token_id"] = eos_token_ids;
  }

  nlohmann::ordered_json rope;
  switch (rope_scaling) {
    case RopeScaling::none: rope["rope_type"] = "default"; break;
    case RopeScaling::linear:
      rope["rope_type"] = "linear";
      rope["factor"] = rope_factor;
      break;
    case RopeScaling::llama3:
      rope["rope_type"] = "llama3";
      rope["factor"] = rope_factor;
      rope["low_freq_factor"] = rope_low_freq_factor;
      rope["high_freq_factor"] = rope_high_freq_factor;
      rope["original_max_position_embeddings"] = rope_original_max_positions;
      break;
    case RopeScaling::yarn:
      rope["rope_type"] = "yarn";
      rope["factor"] = rope_factor;
      rope["original_max_position_embeddings"] = rope_original_max_positions;
      rope["beta_fast"] = rope_beta_fast;
      rope["beta_slow"] = rope_beta_slow;
      if (rope_attention_factor != 0.0) rope["attention_factor"] = rope_attention_factor;
      if (rope_mscale != 0.0) rope["mscale"] = rope_mscale;
      if (rope_mscale_all_dim != 0.0) rope["mscale_all_dim"] = rope_mscale_all_dim;
      rope["truncate"] = rope_truncate;
      break;
  }
  // Both spellings, so that transformers of before and after 5 read the same model.
  json["rope_theta"] = rope_theta;
  json["rope_scaling"] = rope_scaling == RopeScaling::none ? nlohmann::ordered_json(nullptr) : rope;
  rope["rope_theta"] = rope_theta;
  json["rope_parameters"] = rope;
  return json.dump(2) + "\n";
}

}  // namespace nlac
