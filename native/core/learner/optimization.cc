// Optimizer steps, the target network and the reference.
#include <optional>
#include <utility>

#include "core/learner/internal.h"

namespace nlac {

using namespace learner;

StepResult Learner::step(const AdamWOptions& options, const std::string& name,
                         std::optional<double> target_rate) {
  return guarded([&] {
    const std::vector<at::Tensor> gradients = make_gradients().list();
    AdamWMoments& moments = moments_[name];
    const int64_t before = moments.steps;
    std::optional<TargetUpdate> update;
    if (target_rate) update = target_update(*target_rate);
    try {
      const StepResult result = adamw_step(master_.list(), online_.list(), gradients, moments, options,
                                           update ? &*update : nullptr);
      if (!result.skipped) {
        changed(WeightSet::online);
        moved_ = true;
      }
      if (update && result.skipped) update_target(*target_rate);
      if (update && !result.skipped) target_moved();
      return result;
    } catch (...) {
      if (moments.steps == before) throw;  // nothing has changed
      // Some parameters may have changed, so caches and gradients are invalid.
      moved_ = true;
      changed(WeightSet::online);
      if (update) changed(WeightSet::target);
      gradients_.reset();
      throw;
    }
  });
}

TargetUpdate Learner::target_update(double tau) {
  if (tau != 1) require_origin();
  make_target();
  const bool shadowed = options_.dtype != at::kFloat;
  return {target_master_->list(), shadowed ? target_->list() : std::vector<at::Tensor>{}, tau};
}

void Learner::target_moved() {
  ++target_updates_;
  changed(WeightSet::target);
}

void Learner::update_target(double tau) {
  guarded([&] {
    const TargetUpdate update = target_update(tau);
    try {
      ema_update(update.target, master_.list(), update.shadow, tau, 0,
                 static_cast<uint64_t>(target_updates_));
    } catch (...) {
      changed(WeightSet::target);  // part of it may have changed
      throw;
    }
    target_moved();
  });
}

double Learner::target_distance() {
  require_origin();
  if (!target_master_) return 0;
  return guarded([&] { return relative_distance(target_master_->list(), master_.list()); });
}

void Learner::keep_reference() {
  guarded([&] {
    // With an adapter only its matrices are copied, not the base.
    const Weights& kept = base_ ? master_ : online_;
    reference_ = on_base(kept.copy_as(options_.dtype, options_.device));
  });
}

void Learner::reset_q_heads() {
  guarded([&] {
    require_q_heads();
    std::vector<const Weights*> holders = {&master_, &online_};
    if (target_) holders.insert(holders.end(), {&*target_master_, &*target_});
    master_.reset_q_heads(base_ ? *base_ : master_);
    for (const Weights* weights : holders) {
      for (size_t i = 0; i < master_.q.size(); ++i) {
        weights->q[i].advantage.copy_(master_.q[i].advantage);
        weights->q[i].value.copy_(master_.q[i].value);
      }
    }
    // Clears the old heads' gradients and moments. Heads are last in every list.
    const auto forget = [&](const std::vector<at::Tensor>& list) {
      for (size_t i = list.size() - 2 * master_.q.size(); i < list.size(); ++i) list[i].zero_();
    };
    if (gradients_) forget(gradients_->list());
    for (auto& [name, moments] : moments_) {
      if (moments.m.empty()) continue;
      forget(moments.m);
      forget(moments.v);
    }
  });
}

}  // namespace nlac
