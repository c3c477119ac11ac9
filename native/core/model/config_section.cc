#include "core/model/config_section.h"

#include "core/error.h"
#include "core/io/json.h"

namespace nlac::config {

using Json = nlohmann::json;

static bool in_range(const Json& value, int64_t min, int64_t max) {
  // An unsigned value above int64's range would wrap in get<int64_t>().
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  return value.get<int64_t>() >= min && value.get<int64_t>() <= max;
}

std::string Section::shown(const Json& value) { return printable(value.dump()); }

const Json* Section::find(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> Section::integer(const char* key, int64_t min, int64_t max) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  NLAC_REQUIRE(value->is_number_integer() && in_range(*value, min, max), format_error, where(key), " is ",
               shown(*value), ", not an integer from ", min, " to ", max);
  return value->get<int64_t>();
}

int64_t Section::required_integer(const char* key, int64_t min, int64_t max) const {
  const auto value = integer(key, min, max);
  NLAC_REQUIRE(value.has_value(), format_error, where(key), " is missing");
  return *value;
}

std::optional<double> Section::number(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  NLAC_REQUIRE(value->is_number(), format_error, where(key), " is ", shown(*value), ", not a number");
  return value->get<double>();
}

double Section::required_number(const char* key) const {
  const auto value = number(key);
  NLAC_REQUIRE(value.has_value(), format_error, where(key), " is missing");
  return *value;
}

bool Section::boolean(const char* key, bool otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  NLAC_REQUIRE(value->is_boolean(), format_error, where(key), " is ", shown(*value), ", not true or false");
  return value->get<bool>();
}

std::optional<std::string> Section::text(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  NLAC_REQUIRE(value->is_string(), format_error, where(key), " is ", shown(*value), ", not a string");
  return value->get<std::string>();
}

void read_attention_bias(const Section& root, ModelConfig& config) {
  config.qkv_bias = config.output_bias = root.boolean("attention_bias", false);
}

void read_experts(const Section& root, ModelConfig& config) {
  ExpertsShape& experts = config.experts;
  const char* const count = root.find("num_experts") == nullptr ? "num_local_experts" : "num_experts";
  experts.count = root.integer(count, 0, kMaxExperts).value_or(experts.count);
  experts.per_token = root.integer("num_experts_per_tok", 1, kMaxExperts).value_or(experts.per_token);
  experts.intermediate = root.integer("moe_intermediate_size", 1, kMaxWidth).value_or(experts.intermediate);
  experts.balance = root.number("router_aux_loss_coef").value_or(0.001);
  NLAC_REQUIRE(experts.count == 0 || experts.per_token <= experts.count, format_error,
               root.where("num_experts_per_tok"), " is ", experts.per_token, ", more than the ",
               experts.count, " experts");
  NLAC_REQUIRE(experts.balance >= 0, format_error, root.where("router_aux_loss_coef"), " is ",
               experts.balance, ", not 0 or more");
}

void write_experts(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["num_experts"] = config.experts.count;
  json["num_experts_per_tok"] = config.experts.per_token;
  json["moe_intermediate_size"] = config.experts.intermediate;
  json["router_aux_loss_coef"] = config.experts.balance;
}

int64_t read_window(const Section& root, int64_t otherwise) {
  if (!root.json().contains("sliding_window")) return otherwise;
  return root.integer("sliding_window", 1, kMaxPositions).value_or(0);
}

void read_layer_types(const Section& root, ModelConfig& config, int64_t window, int64_t pattern) {
  const Json* types = root.find("layer_types");
  NLAC_REQUIRE(
      types == nullptr || (types->is_array() && static_cast<int64_t>(types->size()) == config.layers),
      format_error, root.where("layer_types"), " is not a list with one entry for each of ", config.layers,
      " layers");
  config.layer_kinds.resize(static_cast<size_t>(config.layers));
  for (int64_t l = 0; l < config.layers; ++l) {
    bool sliding = (l + 1) % pattern != 0;
    if (types != nullptr) {
      const Json& type = (*types)[static_cast<size_t>(l)];
      sliding = type == "sliding_attention";
      NLAC_REQUIRE(sliding || type == "full_attention", format_error, root.where("layer_types"), " holds ",
                   Section::shown(type), "; full_attention and sliding_attention are supported");
    }
    if (!sliding) continue;
    NLAC_REQUIRE(window > 0, format_error, root.where("sliding_window"),
                 " is missing, and layer_types holds sliding_attention");
    LayerKind& kind = config.layer_kinds[static_cast<size_t>(l)];
    kind.window = window;
    if (config.local_rope) kind.rotary = Rotary::local;
  }
}

void write_layer_types(const ModelConfig& config, nlohmann::ordered_json& json) {
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  json["sliding_window"] = nullptr;
  for (int64_t l = 0; l < config.layers; ++l) {
    const int64_t window = config.kind(l).window;
    types.push_back(window > 0 ? "sliding_attention" : "full_attention");
    if (window > 0) json["sliding_window"] = window;
  }
  json["layer_types"] = types;
}

void refuse_sliding_window(const Section& root) {
  NLAC_REQUIRE(!root.boolean("use_sliding_window", false), format_error, root.where("use_sliding_window"),
               " is true; sliding-window attention is not supported for this family");
  const Json* kinds = root.find("layer_types");
  if (kinds == nullptr) return;
  NLAC_REQUIRE(kinds->is_array(), format_error, root.where("layer_types"), " is not a list");
  for (const Json& kind : *kinds) {
    NLAC_REQUIRE(kind == "full_attention", format_error, root.where("layer_types"), " holds ",
                 Section::shown(kind), "; only full_attention is supported for this family");
  }
}

}  // namespace nlac::config
