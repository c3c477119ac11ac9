// The arguments of NativeLearner's methods (lib/native/addon.ts) as the core's types. All throw
// ERR_VALUE; `where` names the value in messages.
#pragma once

#include <napi.h>

#include <string>

#include "core/learner.h"

namespace nlac::binding {

LearnerOptions to_options(Napi::Value value);
// All but the grammar, which the caller compiles.
GenerateRequest to_request(Napi::Value value, const std::string& where);
ScoredText to_scored_text(Napi::Value value, const std::string& where);
SurrogateText to_surrogate_text(Napi::Value value, const std::string& where);
SurrogateSettings to_surrogate_settings(Napi::Value value);
DistilledText to_distilled_text(Napi::Value value, const std::string& where);
PreferencePair to_preference_pair(Napi::Value value, const std::string& where);
JudgedText to_judged_text(Napi::Value value, const std::string& where);
SoftQText to_soft_q_text(Napi::Value value, const std::string& where);
SoftQOptions to_soft_q_options(Napi::Value value);

}  // namespace nlac::binding
