// Generation and scoring: computations without a gradient.
#include <utility>

#include "core/learner/internal.h"
#include "core/model/linear.h"

namespace nlac {

using namespace learner;

std::vector<GenerateResult> Learner::generate(const std::vector<GenerateRequest>& requests, WeightSet which,
                                              const GenerateHooks& hooks) {
  if (generates_together()) return generate_together(requests, which, hooks);
  const auto call = begin_generation(requests, which, hooks);
  while (!call->done()) advance_generation();
  return results(*call);
}

std::shared_ptr<GenerateCall> Learner::begin_generation(std::vector<GenerateRequest> requests,
                                                        WeightSet which, GenerateHooks hooks) {
  return guarded([&] {
    NLAC_REQUIRE(which != WeightSet::reference, "ERR_VALUE",
                 "the reference can score texts but not generate");
    weights(which);  // allocates θ̄, or throws
    require_gathered(which);
    Engine& engine = which == WeightSet::online ? *online_engine_ : *target_engine_;
    return engine.submit(std::move(requests), std::move(hooks));
  });
}

bool Learner::advance_generation() {
  return guarded([&] {
    bool left = false;
    if (online_engine_->busy()) left |= online_engine_->step(online_);
    if (target_engine_->busy()) left |= target_engine_->step(*target_);
    return left;
  });
}

std::vector<GenerateResult> Learner::results(GenerateCall& call) {
  return guarded([&] {
    if (call.failure) std::rethrow_exception(call.failure);
    return std::move(call.results);
  });
}

void Learner::changed(WeightSet which) {
  release_gathered();
  (which == WeightSet::online ? online_engine_ : target_engine_)->drop_caches();
  decoder_.forget_packed(which == WeightSet::online ? online_ : *target_);
}

std::vector<std::vector<float>> Learner::log_probs(const std::vector<ScoredText>& texts, WeightSet which,
                                                   double temperature) {
  const Scoring scoring{.weights = which};
  return scored(scoring, [&] {
    check_temperature(temperature);
    const std::vector<Text> items = checked(texts);
    auto output = zeros_for(items);
    const Weights& used = weights(which);
    score(items, scoring, [&](const Rows& rows) {
      const LossResult result = linear_token_log_probs(rows.hidden, used.head, rows.targets, rows.row_weights,
                                                       {}, false, loss_options(temperature, false), {});
      rows.scatter(result.log_probs, [&](size_t text) { return output[text].data(); });
      return result;
    });
    return output;
  });
}

std::vector<std::vector<float>> Learner::values(const std::vector<ScoredText>& texts) {
  const Scoring scoring;
  return scored(scoring, [&] {
    require_value_head();
    const std::vector<Text> items = checked(texts);
    auto output = zeros_for(items);
    score(items, scoring, [&](const Rows& rows) {
      rows.scatter(predicted_values(rows), [&](size_t text) { return output[text].data(); });
      return LossResult{};
    });
    return output;
  });
}

at::Tensor Learner::logits(const std::vector<int64_t>& ids, WeightSet which) {
  return guarded([&] {
    NLAC_REQUIRE(!ids.empty(), "ERR_VALUE", "the text is empty");
    NLAC_REQUIRE(static_cast<int64_t>(ids.size()) <= config_.max_positions, "ERR_VALUE", "the text has ",
                 ids.size(), " tokens, more than the context of ", config_.max_positions);
    check_ids(config_, ids);
    const Weights& used = weights(which);
    require_gathered(which);
    const at::Tensor hidden =
        decoder_.forward(used, on_device(ids, options_.device), {static_cast<int64_t>(ids.size())});
    return nlac::logits(hidden, used.head, config_.logit_cap).to(at::kCPU, at::kFloat).contiguous();
  });
}

}  // namespace nlac
