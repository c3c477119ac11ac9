#include "binding/learner_arguments.h"

#include <cmath>
#include <optional>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "core/error.h"

namespace nlac::binding {

LearnerOptions to_options(Napi::Value value) {
  const Fields fields(value, "options");
  LearnerOptions options;
  options.device = to_device(value.As<Napi::Object>().Get("device"), "options.device");
  options.dtype = to_dtype(value.As<Napi::Object>().Get("dtype"), "options.dtype");
  NLAC_REQUIRE(options.dtype == at::kFloat || options.dtype == at::kBFloat16, "ERR_VALUE",
               "options.dtype must be float32 or bfloat16");
  options.int8_generation = fields.boolean("int8Generation");
  options.gradient_checkpointing = fields.boolean("gradientCheckpointing");
  // Absent: none. Below 0: the model's own coefficient.
  if (!value.As<Napi::Object>().Get("expertBalance").IsUndefined()) {
    const double balance = fields.number("expertBalance");
    NLAC_REQUIRE(std::isfinite(balance), "ERR_VALUE", "options.expertBalance must be finite");
    options.balance = balance < 0 ? std::nullopt : std::optional(balance);
  }
  options.micro_batch_tokens = fields.integer("microBatchTokens");
  NLAC_REQUIRE(options.micro_batch_tokens > 0, "ERR_VALUE", "options.microBatchTokens must be positive");
  const int64_t cache_bytes = fields.integer("cacheBytes");
  NLAC_REQUIRE(cache_bytes >= 0, "ERR_VALUE", "options.cacheBytes must not be negative");
  options.cache_bytes = static_cast<size_t>(cache_bytes);
  const std::optional<Heads> heads = heads_named(fields.string("heads"));
  NLAC_REQUIRE(heads, "ERR_VALUE", "options.heads must be none, value or q");
  options.heads = *heads;
  const Napi::Value adapter = value.As<Napi::Object>().Get("adapter");
  if (!adapter.IsUndefined()) {
    const Fields given(adapter, "options.adapter");
    options.adapter = {given.integer("rank"), given.number("alpha"), given.strings("targets"),
                       given.seed("seed")};
  }
  const Napi::Value ranks = value.As<Napi::Object>().Get("ranks");
  if (!ranks.IsUndefined()) options.ranks = unwrap_ranks(ranks, "options.ranks");
  options.sharding = static_cast<int>(fields.integer("sharding"));
  options.layerwise_generation = fields.boolean("layerwiseGeneration");
  return options;
}

GenerateRequest to_request(Napi::Value value, const std::string& where) {
  const Fields fields(value, where);
  GenerateRequest request;
  request.tokens = fields.ids("tokens");
  request.max_new_tokens = fields.integer("maxNewTokens");
  request.temperature = fields.number("temperature");
  request.top_p = fields.number("topP");
  request.top_k = fields.integer("topK");
  request.min_p = fields.number("minP");
  request.repetition_penalty = fields.number("repetitionPenalty");
  request.forbidden = fields.ids("forbidden");
  request.forced = fields.ids("forced");
  request.seed = fields.seed("seed");
  request.stop_token_ids = fields.ids("stopTokenIds");
  request.stop = fields.strings("stop");
  request.keep_hidden = fields.boolean("keepHidden");
  request.top_log_probs = fields.integer("topLogProbs");
  return request;
}

ScoredText to_scored_text(Napi::Value value, const std::string& where) {
  const Fields fields(value, where);
  return {fields.ids("prompt"), fields.ids("response"), fields.floats("weights")};
}

SurrogateText to_surrogate_text(Napi::Value value, const std::string& where) {
  const Fields fields(value, where);
  return {to_scored_text(value, where),       fields.floats("oldLogProbs"), fields.floats("advantages"),
          fields.floats("referenceLogProbs"), fields.floats("returns"),     fields.floats("oldValues")};
}

SurrogateSettings to_surrogate_settings(Napi::Value value) {
  const Fields fields(value, "options");
  SurrogateSettings settings;
  settings.temperature = fields.number("temperature");
  settings.surrogate = {fields.number("clipLow"), fields.number("clipHigh"), fields.number("klCoefficient")};
  settings.entropy_coefficient = fields.number("entropyCoefficient");
  const Napi::Value of_value = value.As<Napi::Object>().Get("value");
  if (!of_value.IsUndefined()) {
    const Fields parts(of_value, "options.value");
    settings.value = {parts.number("coefficient"), parts.number("clip"), parts.boolean("detached")};
  }
  settings.with_gradient = fields.boolean("withGradient");
  return settings;
}

DistilledText to_distilled_text(Napi::Value value, const std::string& where) {
  const Fields fields(value, where);
  const Napi::Value kept = value.As<Napi::Object>().Get("teacherHidden");
  return {fields.ids("student"), fields.ids("teacher"), fields.ids("response"), fields.number("weight"),
          kept.IsUndefined() ? at::Tensor() : unwrap_tensor(kept, where + ".teacherHidden")};
}

SoftQText to_soft_q_text(Napi::Value value, const std::string& where) {
  return {to_scored_text(value, where), Fields(value, where).floats("rewards")};
}

SoftQOptions to_soft_q_options(Napi::Value value) {
  const Fields fields(value, "options");
  return {fields.number("temperature"),       fields.number("discount"),      fields.number("qCoefficient"),
          fields.number("policyCoefficient"), fields.boolean("withGradient"), fields.boolean("detached")};
}

PreferencePair to_preference_pair(Napi::Value value, const std::string& where) {
  const Fields fields(value, where);
  const Napi::Object object = value.As<Napi::Object>();
  return {to_scored_text(object.Get("chosen"), where + ".chosen"),
          to_scored_text(object.Get("rejected"), where + ".rejected"), fields.number("referenceChosen"),
          fields.number("referenceRejected"), fields.number("weight")};
}

JudgedText to_judged_text(Napi::Value value, const std::string& where) {
  const Fields fields(value, where);
  return {fields.ids("prompt"), fields.ids("response"), fields.number("label"), fields.number("weight")};
}

}  // namespace nlac::binding
