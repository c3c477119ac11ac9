// Rotary parameters in a config.json.
#include "core/error.h"
#include "core/io/json.h"
#include "core/model/config_section.h"

namespace nlac::config {

using Json = nlohmann::json;

void read_rope(const Section& root, const Section& rope, const ModelConfig& config, RopeConfig& into) {
  into.theta = rope.number("rope_theta").value_or(into.theta);
  const std::string type = rope.text("rope_type").value_or(rope.text("type").value_or("default"));
  if (type == "proportional" && config.family == Family::gemma4) {
    into.scaling = RopeScaling::proportional;
    into.proportion = rope.number("partial_rotary_factor").value_or(1.0);
    into.factor = rope.number("factor").value_or(1.0);
    return;
  }
  // A family that rotates a part of each head sets its default before.
  const bool partial = into.dimensions > 0;
  for (const Section* section : {&root, &rope}) {
    const auto part = section->number("partial_rotary_factor");
    if (!part) continue;
    NLAC_REQUIRE(*part == 1 || partial, format_error, section->where("partial_rotary_factor"), " is ", *part,
                 "; only 1 is supported for this family");
    NLAC_REQUIRE(*part > 0 && *part <= 1, format_error, section->where("partial_rotary_factor"), " is ",
                 *part, ", not above 0 and up to 1");
    const auto dimensions = static_cast<int64_t>(static_cast<double>(config.head_dim) * *part);
    into.dimensions = dimensions == config.head_dim ? 0 : dimensions;
  }
  into.query_growth = rope.number("llama_4_scaling_beta").value_or(0.0);
  const int64_t original = root.integer("original_max_position_embeddings", 1, kMaxPositions)
                               .value_or(rope.integer("original_max_position_embeddings", 1, kMaxPositions)
                                             .value_or(config.max_positions));
  if (type == "default") {
    into.scaling = RopeScaling::none;
  } else if (type == "linear") {
    into.scaling = RopeScaling::linear;
    into.factor = rope.required_number("factor");
  } else if (type == "llama3") {
    into.scaling = RopeScaling::llama3;
    into.factor = rope.required_number("factor");
    into.low_freq_factor = rope.required_number("low_freq_factor");
    into.high_freq_factor = rope.required_number("high_freq_factor");
    into.original_max_positions = original;
  } else if (type == "yarn") {
    into.scaling = RopeScaling::yarn;
    into.original_max_positions = original;
    into.factor = rope.number("factor").value_or(static_cast<double>(config.max_positions) /
                                                 static_cast<double>(original));
    into.attention_factor = rope.number("attention_factor").value_or(0.0);
    into.mscale = rope.number("mscale").value_or(0.0);
    into.mscale_all_dim = rope.number("mscale_all_dim").value_or(0.0);
    into.truncate = rope.boolean("truncate", true);
    const double fast = rope.number("beta_fast").value_or(0.0), slow = rope.number("beta_slow").value_or(0.0);
    if (fast != 0.0) into.beta_fast = fast;  // 0 means the default, as in transformers
    if (slow != 0.0) into.beta_slow = slow;
  } else {
    fail(format_error, rope.where("rope_type"), " is ", printable(type),
         "; default, linear, llama3 and yarn are supported");
  }
}

void read_shared_rope(const Section& root, ModelConfig& config) {
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
  for (const auto& [key, value] : rope.json().items()) {
    NLAC_REQUIRE(!value.is_object(), format_error, rope.where(printable(key).c_str()),
                 ": rotary parameters for each kind of layer are not supported for this family");
  }
  std::optional<double> theta = root.number("rope_theta");
  if (!theta && parameters != nullptr && parameters->is_object()) {
    theta = Section(*parameters, "rope_parameters.").number("rope_theta");
  }
  config.rope.theta = theta.value_or(config.rope.theta);
  read_rope(root, rope, config, config.rope);
}

void read_two_ropes(const Section& root, ModelConfig& config, const char* local_theta_key) {
  config.local_rope.emplace(config.rope);
  config.rope.theta = root.number("rope_theta").value_or(config.rope.theta);
  config.local_rope->theta = local_theta_key != nullptr
                                 ? root.number(local_theta_key).value_or(config.local_rope->theta)
                                 : config.rope.theta;
  const auto object = [&](const Section& section, const char* key) {
    const Json* value = section.find(key);
    NLAC_REQUIRE(value == nullptr || value->is_object(), format_error, section.where(key), " is ",
                 Section::shown(*value), ", not an object");
    return value;
  };
  if (const Json* parameters = object(root, "rope_parameters")) {
    const Section both(*parameters, "rope_parameters.");
    for (const auto& [key, value] : parameters->items()) {
      NLAC_REQUIRE(key == "full_attention" || key == "sliding_attention", format_error,
                   both.where(printable(key).c_str()),
                   ": rotary parameters are expected for full_attention and sliding_attention");
    }
    if (const Json* full = object(both, "full_attention"))
      read_rope(root, Section(*full, "rope_parameters.full_attention."), config, config.rope);
    if (const Json* sliding = object(both, "sliding_attention"))
      read_rope(root, Section(*sliding, "rope_parameters.sliding_attention."), config, *config.local_rope);
  }
  if (const Json* scaling = object(root, "rope_scaling"))
    read_rope(root, Section(*scaling, "rope_scaling."), config, config.rope);
}

void write_two_ropes(const ModelConfig& config, nlohmann::ordered_json& json, const char* local_theta_key) {
  const RopeConfig& local = config.local_rope.value();
  nlohmann::ordered_json full = rope_json(config.rope), sliding = rope_json(local);
  json["rope_theta"] = config.rope.theta;
  if (local_theta_key != nullptr) json[local_theta_key] = local.theta;
  json["rope_scaling"] = config.rope.scaling == RopeScaling::none ? nlohmann::ordered_json(nullptr) : full;
  full["rope_theta"] = config.rope.theta;
  sliding["rope_theta"] = local.theta;
  json["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", sliding}};
}

nlohmann::ordered_json rope_json(const RopeConfig& rope) {
  nlohmann::ordered_json json;
  switch (rope.scaling) {
    case RopeScaling::none: json["rope_type"] = "default"; break;
    case RopeScaling::linear:
      json["rope_type"] = "linear";
      json["factor"] = rope.factor;
      break;
    case RopeScaling::llama3:
      json["rope_type"] = "llama3";
      json["factor"] = rope.factor;
      json["low_freq_factor"] = rope.low_freq_factor;
      json["high_freq_factor"] = rope.high_freq_factor;
      json["original_max_position_embeddings"] = rope.original_max_positions;
      break;
    case RopeScaling::yarn:
      json["rope_type"] = "yarn";
      json["factor"] = rope.factor;
      json["original_max_position_embeddings"] = rope.original_max_positions;
      json["beta_fast"] = rope.beta_fast;
      json["beta_slow"] = rope.beta_slow;
      if (rope.attention_factor != 0.0) json["attention_factor"] = rope.attention_factor;
      if (rope.mscale != 0.0) json["mscale"] = rope.mscale;
      if (rope.mscale_all_dim != 0.0) json["mscale_all_dim"] = rope.mscale_all_dim;
      json["truncate"] = rope.truncate;
      break;
    case RopeScaling::proportional:
      json["rope_type"] = "proportional";
      json["partial_rotary_factor"] = rope.proportion;
      if (rope.factor != 1.0) json["factor"] = rope.factor;
      break;
  }
  if (rope.query_growth != 0.0) json["llama_4_scaling_beta"] = rope.query_growth;
  return json;
}

void write_shared_rope(const ModelConfig& config, nlohmann::ordered_json& json) {
  nlohmann::ordered_json rope = rope_json(config.rope);
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = config.rope.scaling == RopeScaling::none ? nlohmann::ordered_json(nullptr) : rope;
  rope["rope_theta"] = config.rope.theta;
  json["rope_parameters"] = rope;
}

}  // namespace nlac::config
