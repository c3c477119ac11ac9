// Results of NativeLearner's methods (lib/native/addon.ts) as JavaScript values.
#pragma once

#include <napi.h>

#include <vector>

#include "core/learner.h"

namespace nlac::binding {

Napi::Value from_rows(Napi::Env env, const std::vector<std::vector<float>>& rows);
Napi::Value from_logits(Napi::Env env, const std::vector<at::Tensor>& all);  // f32, contiguous, on the CPU
Napi::Value from_results(Napi::Env env, const std::vector<GenerateResult>& results);
// The losses alone, or objects with the details.
Napi::Value from_kl(Napi::Env env, const LossOutput& output);
Napi::Value from_surrogates(Napi::Env env, const std::vector<SurrogateOutput>& outputs);
Napi::Value from_preferences(Napi::Env env, const std::vector<PreferenceOutput>& outputs);
Napi::Value from_soft_q(Napi::Env env, const std::vector<SoftQOutput>& outputs);
const char* family_name(Family family);

}  // namespace nlac::binding
