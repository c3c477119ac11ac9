// Optimizer steps, the target network and the reference.
#include <optional>
#include <utility>

#include "core/learner/internal.h"
#include "core/learner/sharding.h"

namespace nlac {

using namespace learner;

// Makes the moments of new parameters; adamw_step() would, too.
static void allocate(AdamWMoments& moments, const std::vector<at::Tensor>& masters) {
  if (!moments.m.empty()) return;
  std::vector<at::Tensor> m, v;
  for (const at::Tensor& master : masters) {
    m.push_back(at::zeros_like(master));
    v.push_back(at::zeros_like(master));
  }
  moments.m = std::move(m);
  moments.v = std::move(v);
}

StepResult Learner::step(const AdamWOptions& options, const std::string& name,
                         std::optional<double> target_rate) {
  return guarded([&] {
    // Checks the options: ranks cannot repeat a step once they have summed their gradients.
    AdamWMoments none;
    const TargetUpdate of_rate{{}, {}, target_rate.value_or(0)};
    adamw_step({}, {}, {}, none, options, &of_rate);
    if (!target_rate) agree_on_target();

    AdamWMoments& moments = moments_[name];
    const int64_t before = moments.steps;
    const Held online = held(WeightSet::online);
    std::optional<TargetUpdate> update;
    const auto prepare = [&] {
      make_gradients();
      if (target_rate) update = target_update(*target_rate);
    };
    if (options_.ranks) {
      // Allocates whatever may fail before the ranks wait for each other.
      options_.ranks->together([&] {
        prepare();
        allocate(moments, online.masters);
      });
    } else {
      prepare();
    }
    const std::vector<at::Tensor> gradients = summed_gradients();
    try {
      StepResult result;
      const auto take = [&] {
        result = adamw_step(online.masters, online.compute, gradients, moments, options,
                            update ? &*update : nullptr, sum_over_ranks());
      };
      // If a rank fails, the others must not go on to collect from it. All of them call sum_over_ranks()
      // equally often, so that they may communicate in together().
      if (options_.ranks)
        options_.ranks->together(take);
      else
        take();
      clear_gradients();
      if (!result.skipped) {
        collect(WeightSet::online);
        changed(WeightSet::online);
        moved_ = true;
      }
      if (update && result.skipped) update_target(*target_rate);
      if (update && !result.skipped) {
        collect(WeightSet::target);
        target_moved();
      }
      return result;
    } catch (...) {
      if (moments.steps == before) {  // no parameter has changed
        if (options_.ranks)
          discard_gradients();  // already the ranks' sum: a repeated step would add it up again
        throw;
      }
      // Some parameters may have changed, so caches and gradients are invalid.
      moved_ = true;
      changed(WeightSet::online);
      if (update) changed(WeightSet::target);
      discard_gradients();
      throw;
    }
  });
}

TargetUpdate Learner::target_update(double target_rate) {
  if (target_rate != 1) require_origin();
  make_target();
  const bool shadowed = options_.dtype != at::kFloat;
  const Held target = held(WeightSet::target);
  return {target.masters, shadowed ? target.compute : std::vector<at::Tensor>{}, target_rate};
}

void Learner::target_moved() {
  ++target_updates_;
  changed(WeightSet::target);
}

void Learner::update_target(double target_rate) {
  guarded([&] {
    TargetUpdate update;
    const auto prepare = [&] { update = target_update(target_rate); };
    if (options_.ranks) {
      options_.ranks->together(prepare);
    } else {
      prepare();
    }
    try {
      ema_update(update.target, held(WeightSet::online).masters, update.shadow, target_rate, 0,
                 static_cast<uint64_t>(target_updates_));
      collect(WeightSet::target);
    } catch (...) {
      changed(WeightSet::target);  // part of it may have changed
      throw;
    }
    target_moved();
  });
}

double Learner::target_distance() {
  return guarded([&] {
    agree_on_target();
    require_origin();
    if (!target_) return 0.0;
    DistanceSums sums;
    const auto add = [&] {
      sums = distance_sums(held(WeightSet::target).masters, held(WeightSet::online).masters);
    };
    if (!shards_) {
      add();
    } else {
      // The float64 copies may fail on one rank, before the ranks wait for each other.
      options_.ranks->together(add);
      sums = {options_.ranks->sum(sums.difference), options_.ranks->sum(sums.size)};
    }
    return sums.relative();
  });
}

void Learner::keep_reference() {
  guarded([&] {
    if (shards_ && shards_->divides_weights()) return make_sharded_reference();
    // With an adapter only its matrices are copied, not the base.
    const Weights& kept = shards_ ? shards_->trained : base_ ? master_ : online_;
    reference_ = on_base(kept.copy_as(options_.dtype, options_.device));
  });
}

void Learner::restore_reference() {
  guarded([&] {
    NLAC_REQUIRE(reference_, "ERR_VALUE", "there is no reference: call keepReference first");
    agree_on_target();
    discard_gradients();
    moved_ = true;
    if (shards_ && shards_->divides_weights()) {
      restore_sharded_reference();
    } else if (shards_) {
      set_masters(*reference_);
    } else {
      const std::vector<at::Tensor> from = reference_->list();
      for (const std::vector<at::Tensor>& to : {master_.list(), online_.list()})
        for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
    }
    changed(WeightSet::online);
  });
}

void Learner::reset_q_heads() {
  guarded([&] {
    require_q_heads();
    if (shards_) return reset_sharded_q_heads();
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
