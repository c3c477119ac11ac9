// Reads and writes a Hugging Face config.json: what all families share. The rest is in families/.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "core/io/json.h"
#include "core/model/config_section.h"
#include "core/model/families.h"

namespace nlac {

using namespace config;

namespace {

using Json = nlohmann::json;

const FamilyEntry& family_of(const Section& root) {
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
  if (const FamilyEntry* entry = family_named(name)) return *entry;
  std::string known;
  for (const FamilyEntry* entry : all_families())
    known += (known.empty() ? "" : ", ") + std::string(entry->architecture);
  fail(format_error, root.where("architectures"), " is ", printable(name), "; supported are ", known);
}

void read_token_ids(const Section& root, ModelConfig& config) {
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

bool is_mxfp4(const Json& quantization) {
  const auto method = quantization.is_object() ? quantization.find("quant_method") : quantization.end();
  return method != quantization.end() && *method == "mxfp4";
}

const char* activation_name(Activation activation) {
  return activation == Activation::silu ? "silu" : "gelu_pytorch_tanh";
}

}  // namespace

// The text model's object of a configuration of text and images, with what only the outer object
// has. It is named by its model_type.
static Json text_part(Json json) {
  const auto found = json.find("text_config");
  if (found == json.end() || found->is_null()) return json;
  NLAC_REQUIRE(found->is_object(), format_error, "config.json: text_config is not an object");
  Json text = *found;
  for (const char* key :
       {"tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "quantization_config"})
    if ((!text.contains(key) || text[key].is_null()) && json.contains(key)) text[key] = json[key];
  text.erase("architectures");
  return text;
}

ModelConfig ModelConfig::from_json(const std::string& config_json) {
  Json json = parse_json(config_json, "config.json");
  NLAC_REQUIRE(json.is_object(), format_error, "config.json: not a JSON object");
  json = text_part(std::move(json));
  const Section root(json, "");
  const FamilyEntry& entry = family_of(root);
  const Json defaults = Json::parse(entry.defaults);
  for (const auto& [key, value] : defaults.items())
    if (root.find(key.c_str()) == nullptr) json[key] = value;

  ModelConfig config;
  config.family = entry.family;
  config.vocab_size = root.required_integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = root.required_integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = root.required_integer("intermediate_size", 1, kMaxWidth);
  config.layers = root.required_integer("num_hidden_layers", 1, kMaxLayers);
  config.heads = root.required_integer("num_attention_heads", 1, kMaxHeads);
  config.kv_heads = root.integer("num_key_value_heads", 1, kMaxHeads).value_or(config.heads);
  config.max_positions = root.required_integer("max_position_embeddings", 1, kMaxPositions);
  if (const auto head_dim = root.integer("head_dim", 1, kMaxWidth)) {
    config.head_dim = *head_dim;
  } else {
    NLAC_REQUIRE(config.hidden_size % config.heads == 0, format_error, root.where("hidden_size"), ": ",
                 config.hidden_size, " does not divide into ", config.heads,
                 " heads, and head_dim is missing");
    config.head_dim = config.hidden_size / config.heads;
  }
  config.rms_norm_eps = root.number("rms_norm_eps").value_or(1e-6);
  config.tied_embeddings = root.boolean("tie_word_embeddings", false);
  config.activation = entry.activation;
  const Json* const quantization = root.find("quantization_config");
  NLAC_REQUIRE(quantization == nullptr || (entry.mxfp4 && is_mxfp4(*quantization)), format_error,
               root.where("quantization_config"), ": quantized weights of this kind are not supported");
  entry.read(root, config);
  const char* const activation = activation_name(config.activation);
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const std::string named = root.text(key).value_or(activation);
    NLAC_REQUIRE(named == activation, format_error, root.where(key), " is ", printable(named), "; only ",
                 activation, " is supported for this family");
  }
  read_token_ids(root, config);
  drop_plain_kinds(config);
  validate(config, "config.json");
  return config;
}

std::string ModelConfig::to_json(const std::string& dtype) const {
  NLAC_REQUIRE(dtype == "float32" || dtype == "bfloat16", "ERR_VALUE", "dtype ", printable(dtype),
               " is neither float32 nor bfloat16");
  const FamilyEntry& entry = entry_of(family);
  const auto id_or_null = [](int64_t id) {
    return id < 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(id);
  };
  nlohmann::ordered_json json;
  json["architectures"] = {entry.architecture};
  json["model_type"] = entry.name;
  json["torch_dtype"] = dtype;
  json["vocab_size"] = vocab_size;
  json["hidden_size"] = hidden_size;
  json["intermediate_size"] = intermediate_size;
  json["num_hidden_layers"] = layers;
  json["num_attention_heads"] = heads;
  json["num_key_value_heads"] = kv_heads;
  json["head_dim"] = head_dim;
  json[entry.activation_key] = activation_name(activation);
  json["rms_norm_eps"] = rms_norm_eps;
  json["max_position_embeddings"] = max_positions;
  json["tie_word_embeddings"] = tied_embeddings;
  json["bos_token_id"] = id_or_null(bos_token_id);
  json["pad_token_id"] = id_or_null(pad_token_id);
  if (eos_token_ids.empty()) {
    json["eos_token_id"] = nullptr;
  } else if (eos_token_ids.size() == 1) {
    json["eos_token_id"] = eos_token_ids.front();
  } else {
    json["eos_token_id"] = eos_token_ids;
  }
  entry.write(*this, json);

  // What an entry does not write must be what it reads back.
  const ModelConfig read = from_json(json.dump());
  NLAC_REQUIRE(read == *this, format_error, "the configuration cannot be written as a config.json of ",
               entry.architecture);
  return json.dump(2) + "\n";
}

}  // namespace nlac
