#include "binding/learner_results.h"

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "core/error.h"
#include "core/model/families.h"

namespace nlac::binding {

Napi::Value from_rows(Napi::Env env, const std::vector<std::vector<float>>& rows) {
  return from_vector(env, rows, [env](const std::vector<float>& row) { return from_floats(env, row); });
}

Napi::Value from_logits(Napi::Env env, const std::vector<at::Tensor>& all) {
  return from_vector(env, all, [env](const at::Tensor& logits) {
    return from_floats(env, logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel()));
  });
}

static const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::stuck: return "stuck";
    case FinishReason::cancelled: return "cancelled";
  }
  fail("ERR_INTERNAL", "an unnamed reason to finish");
}

Napi::Value from_results(Napi::Env env, const std::vector<GenerateResult>& results) {
  return from_vector(env, results, [env](const GenerateResult& result) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("tokens", from_ids(env, result.tokens));
    object.Set("logProbs", from_floats(env, result.log_probs));
    object.Set("finishReason", finish_name(result.finish_reason));
    object.Set("cachedTokens", Napi::Number::New(env, static_cast<double>(result.cached_tokens)));
    if (result.hidden.defined()) object.Set("hidden", make_tensor(env, result.hidden));
    object.Set("topTokens", from_ints(env, result.top_tokens));
    object.Set("topLogProbs", from_floats(env, result.top_log_probs));
    return object;
  });
}

Napi::Value from_kl(Napi::Env env, const LossOutput& output) {
  if (output.details.empty()) return from_rows(env, output.losses);
  const auto side_of = [env](const KlDetail::Side& side) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("logProbs", from_floats(env, side.log_probs));
    object.Set("top", from_ints(env, side.top));
    object.Set("topLogProbs", from_floats(env, side.top_log_probs));
    return object;
  };
  Napi::Array array = Napi::Array::New(env, output.losses.size());
  for (size_t i = 0; i < output.losses.size(); ++i) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("losses", from_floats(env, output.losses[i]));
    object.Set("online", side_of(output.details[i].online));
    object.Set("target", side_of(output.details[i].target));
    array.Set(static_cast<uint32_t>(i), object);
  }
  return array;
}

Napi::Value from_surrogates(Napi::Env env, const std::vector<SurrogateOutput>& outputs) {
  return from_vector(env, outputs, [env](const SurrogateOutput& output) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("losses", from_floats(env, output.losses));
    object.Set("logProbs", from_floats(env, output.log_probs));
    object.Set("entropies", from_floats(env, output.entropies));
    object.Set("ratios", from_floats(env, output.ratios));
    object.Set("clipped", from_ints(env, output.clipped));
    if (!output.values.empty()) {
      object.Set("values", from_floats(env, output.values));
      object.Set("valueLosses", from_floats(env, output.value_losses));
    }
    return object;
  });
}

Napi::Value from_preferences(Napi::Env env, const std::vector<PreferenceOutput>& outputs) {
  return from_vector(env, outputs, [env](const PreferenceOutput& output) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("loss", output.loss);
    object.Set("chosenLogProb", output.chosen_log_prob);
    object.Set("rejectedLogProb", output.rejected_log_prob);
    object.Set("chosenReward", output.chosen_reward);
    object.Set("rejectedReward", output.rejected_reward);
    return object;
  });
}

Napi::Value from_soft_q(Napi::Env env, const std::vector<SoftQOutput>& outputs) {
  return from_vector(env, outputs, [env](const SoftQOutput& output) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("qLosses", from_floats(env, output.q_losses));
    object.Set("policyLosses", from_floats(env, output.policy_losses));
    object.Set("q", from_floats(env, output.q));
    object.Set("targets", from_floats(env, output.targets));
    object.Set("entropies", from_floats(env, output.entropies));
    return object;
  });
}

const char* family_name(Family family) { return entry_of(family).name; }

}  // namespace nlac::binding
