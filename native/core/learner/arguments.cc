// Checks of the learner's arguments.
#include <cmath>

#include "core/learner/internal.h"

namespace nlac {
namespace learner {

void check_text(const ModelConfig& config, size_t index, const char* name, const Ids& context,
                const Ids& response) {
  const auto require = [&](bool condition, const auto&... what) {
    NLAC_REQUIRE(condition, "ERR_VALUE", "text ", index, ": ", what...);
  };
  require(!context.empty(), "the ", name, " is empty");
  require(!response.empty(), "the response is empty");
  check_ids(config, context, "text ", index, ": ");
  check_ids(config, response, "text ", index, ": ");
  require(static_cast<int64_t>(context.size() + response.size()) <= config.max_positions, "the ", name,
          " of ", context.size(), " tokens and the response of ", response.size(), " exceed the context of ",
          config.max_positions);
}

std::vector<float> spread_weights(size_t index, const std::vector<float>& weights, size_t tokens) {
  NLAC_REQUIRE(weights.size() == 1 || weights.size() == tokens, "ERR_VALUE", "text ", index,
               ": expected one weight, or one for each of ", tokens, " response tokens, got ",
               weights.size());
  for (const float weight : weights) {
    NLAC_REQUIRE(std::isfinite(weight), "ERR_VALUE", "text ", index,
                 ": a weight must be a finite float, got ", weight);
  }
  return weights.size() == tokens ? weights : std::vector<float>(tokens, weights[0]);
}

void check_list(size_t index, const char* name, const std::vector<float>& list,
                const std::vector<float>& weights) {
  NLAC_REQUIRE(list.size() == weights.size(), "ERR_VALUE", "text ", index, ": ", name,
               ": expected one for each of ", weights.size(), " response tokens, got ", list.size());
  for (size_t token = 0; token < list.size(); ++token) {
    NLAC_REQUIRE(weights[token] == 0 || std::isfinite(list[token]), "ERR_VALUE", "text ", index, ": ", name,
                 " must be finite, got ", list[token], " for token ", token);
  }
}

void check_temperature(double temperature) {
  NLAC_REQUIRE(std::isfinite(temperature) && temperature > 0, "ERR_VALUE",
               "temperature must be finite and positive, got ", temperature);
}

void check_at_least_0(const char* what, double value) {
  NLAC_REQUIRE(std::isfinite(value) && value >= 0, "ERR_VALUE", what, " must be finite and at least 0, got ",
               value);
}

void check_options(const LearnerOptions& options) {
  NLAC_REQUIRE(options.dtype == at::kFloat || options.dtype == at::kBFloat16, "ERR_VALUE",
               "dtype must be float32 or bfloat16, got ", c10::toString(options.dtype));
  NLAC_REQUIRE(!options.int8_generation || options.device.is_cpu(), "ERR_CONFIG",
               "int8 generation runs on the CPU only: omit int8Generation");
  NLAC_REQUIRE(options.micro_batch_tokens > 0, "ERR_VALUE", "micro_batch_tokens must be positive, got ",
               options.micro_batch_tokens);
  NLAC_REQUIRE(options.sharding >= 0 && options.sharding <= 3, "ERR_VALUE",
               "sharding must be 0, 1, 2 or 3, not ", options.sharding);
  if (options.adapter) check_adapter(*options.adapter);
}

}  // namespace learner

using namespace learner;

std::vector<Learner::Text> Learner::checked(const std::vector<ScoredText>& texts) const {
  std::vector<Text> items;
  for (size_t i = 0; i < texts.size(); ++i) items.push_back(checked(i, texts[i]));
  return items;
}

Learner::Text Learner::checked(size_t index, const ScoredText& text) const {
  check_text(config_, index, "prompt", text.prompt, text.response);
  return {&text.prompt, nullptr, &text.response, spread_weights(index, text.weights, text.response.size())};
}

std::vector<std::vector<float>> Learner::zeros_for(const std::vector<Text>& texts) {
  std::vector<std::vector<float>> lists;
  for (const Text& text : texts) lists.emplace_back(text.response->size());
  return lists;
}

}  // namespace nlac
