// What ranks exchange while they compute: the layers' parameters at sharding 3, and their gradients
// from sharding 2 on.
#include <exception>
#include <utility>

#include "core/learner/internal.h"
#include "core/learner/sharding.h"

namespace nlac {

using namespace learner;

// --- losses --------------------------------------------------------------------------------------

bool Learner::exchanges(const Scoring& scoring) const {
  return shards_ && (shards_->divides_weights() || (scoring.with_gradient && shards_->exchanges_layers()));
}

void Learner::begin_rounds(const Scoring& scoring, int64_t batches, bool reads_teacher) {
  entered_ = true;
  Shards& s = *shards_;
  RankGroup& ranks = *options_.ranks;
  release_gathered();
  if (scoring.with_gradient) ranks.together([&] { make_gradients(); });
  s.rounds = {};
  s.rounds.scoring = scoring;
  s.rounds.count = ranks.max(batches);
  RoundOptions options{s.layout.layers(), s.divides_weights(), false, scoring.with_gradient};
  // A rank whose texts keep the teacher's states does not read θ̄, but takes part for the others.
  if (options.gathers && scoring.teacher) options.teacher = ranks.max(reads_teacher) != 0;
  s.rounds.steps = round_of(options);
}

std::function<void(size_t)> Learner::before_layers(LayerPass pass) {
  if (!shards_->divides_weights() && pass != LayerPass::backward) return {};
  return [this, pass](size_t layer) {
    Shards::Rounds& rounds = shards_->rounds;
    for (;;) {
      NLAC_REQUIRE(rounds.at < rounds.end(rounds.finished + 1), "ERR_INTERNAL",
                   "a layer is used out of the ranks' order");
      const LayerStep& step = rounds.steps[rounds.at % rounds.steps.size()];
      perform(step);
      ++rounds.at;
      if (step.kind == LayerStep::Kind::use && step.pass == pass && step.layer == layer) return;
    }
  };
}

void Learner::finish_round() {
  Shards::Rounds& rounds = shards_->rounds;
  ++rounds.finished;
  for (; rounds.at < rounds.end(rounds.finished); ++rounds.at)
    perform(rounds.steps[rounds.at % rounds.steps.size()]);
}

void Learner::finish_rounds() {
  while (shards_->rounds.finished < shards_->rounds.count) finish_round();
}

void Learner::abandon_rounds() noexcept {
  Shards& s = *shards_;
  // Otherwise an exchange has failed, because a rank has ended.
  if (!std::exchange(s.rounds.communicating, false)) {
    try {
      if (s.rounds.scoring.with_gradient)
        for (size_t l = 0; l < s.layout.layers(); ++l) s.gradients[l].zero_();
      finish_rounds();
      return;
    } catch (...) {
      // The caller reports the first failure.
    }
  }
  s.pending = {};
}

void Learner::take_part(const Scoring& scoring) noexcept {
  if (entered_ || !exchanges(scoring)) return;
  try {
    begin_rounds(scoring, 0, false);
    finish_rounds();
  } catch (...) {
    // The caller reports the first failure.
  }
}

void Learner::perform(const LayerStep& step) {
  Shards& s = *shards_;
  const size_t buffer = buffer_of(step.layer);
  // Waits until the buffer is filled.
  const auto complete = [&] {
    if (!s.pending[buffer]) return;
    s.rounds.communicating = true;
    std::exchange(s.pending[buffer], nullptr)();
    s.rounds.communicating = false;
  };
  switch (step.kind) {
    case LayerStep::Kind::gather: {
      complete();
      const Scoring& scoring = s.rounds.scoring;
      const Units& units = s.units(step.pass == LayerPass::teacher ? *scoring.teacher : scoring.weights);
      // A rank that has no memory for θ̄ fails, but sends something so that the others continue.
      const at::Tensor& own = units.empty() ? s.online[step.layer] : units[step.layer];
      const at::Tensor whole = s.buffer(step.layer);
      const at::Tensor part = s.own_in(whole, own, step.layer);
      s.rounds.communicating = true;
      s.pending[buffer] = options_.ranks->start_all_gather(whole, part);
      s.rounds.communicating = false;
      break;
    }
    case LayerStep::Kind::use:
      if (s.divides_weights()) complete();
      break;
    case LayerStep::Kind::exchange: {
      const at::Tensor sum = s.scratch.narrow(0, 0, s.sums[step.layer].numel());
      s.rounds.communicating = true;
      options_.ranks->reduce_scatter(sum, s.gradients[step.layer]);
      s.rounds.communicating = false;
      s.sums[step.layer].add_(sum);
      s.gradients[step.layer].zero_();
      break;
    }
  }
}

// --- generation ----------------------------------------------------------------------------------

void Learner::gather(WeightSet which) {
  guarded([&] {
    NLAC_REQUIRE(which != WeightSet::reference, "ERR_VALUE", "the reference does not generate");
    if (!shards_ || !shards_->divides_weights()) return;
    Shards& s = *shards_;
    if (options_.ranks->max(s.gathered != which) == 0) return;
    release_gathered();
    Units whole;
    options_.ranks->together([&] {
      weights(which);  // allocates θ̄, or throws
      for (size_t l = 0; l < s.layout.layers(); ++l)
        whole.push_back(s.layout.whole(l, s.buffers[0].options()));
    });
    for (size_t l = 0; l < whole.size(); ++l)
      options_.ranks->all_gather(whole[l], s.own_in(whole[l], s.units(which)[l], l));
    const std::vector<at::Tensor> list = weights(which).list();
    for (size_t l = 0; l < whole.size(); ++l) s.layout.point(list, l, whole[l]);
    s.gathered = which;
  });
}

void Learner::release_gathered() {
  if (!shards_ || !shards_->gathered) return;
  Shards& s = *shards_;
  const Weights& used = *s.gathered == WeightSet::online ? online_ : *target_;
  decoder_.forget_packed(used);  // packed copies of what is freed here
  const std::vector<at::Tensor> list = used.list();
  for (size_t l = 0; l < s.layout.layers(); ++l) s.layout.point(list, l, s.buffer(l));
  s.gathered.reset();
}

void Learner::require_gathered(WeightSet which) const {
  NLAC_REQUIRE(!shards_ || !shards_->divides_weights() || shards_->gathered == which, "ERR_VALUE",
               "with sharding 3 the weights must be gathered on all ranks before they generate");
}

bool Learner::generates_together() const {
  return shards_ && shards_->divides_weights() && options_.layerwise_generation;
}

std::vector<GenerateResult> Learner::generate_together(const std::vector<GenerateRequest>& requests,
                                                       WeightSet which, const GenerateHooks& hooks) {
  return guarded([&] {
    NLAC_REQUIRE(which != WeightSet::reference, "ERR_VALUE", "the reference does not generate");
    Shards& s = *shards_;
    RankGroup& ranks = *options_.ranks;
    release_gathered();
    ranks.together([&] { weights(which); });  // allocates θ̄, or throws
    Engine& engine = which == WeightSet::online ? *online_engine_ : *target_engine_;
    // A layer's matrices are packed when they are used, and change with the next layer in their buffer.
    std::vector<std::vector<at::Tensor>> layers(s.layout.layers());
    const std::vector<at::Tensor> list = weights(which).list();
    for (size_t i = 0; i < list.size(); ++i)
      if (s.layout.unit_of(i) < layers.size()) layers[s.layout.unit_of(i)].push_back(list[i]);
    const Decoder::BeforeLayer collect_layer = before_layers(LayerPass::forward);
    const Decoder::BeforeLayer before_layer = [&](size_t layer) {
      if (layer > 0) decoder_.forget_packed(layers[layer - 1]);
      collect_layer(layer);
    };

    // A step is a round. The ranks make as many as the rank that needs most.
    constexpr int64_t done = 0, waits = 1, computes = 2;
    s.rounds = {};
    s.rounds.scoring.weights = which;
    s.rounds.steps = round_of({s.layout.layers(), /*gathers=*/true, false, false});
    // Last, because the hooks' targets may end with this function: nothing below leaves a call behind.
    std::shared_ptr<GenerateCall> call;
    std::exception_ptr refused;  // this rank then takes part for the others
    try {
      call = engine.submit(requests, hooks);
    } catch (...) {
      refused = std::current_exception();
    }
    try {
      for (;;) {
        const int64_t own = engine.prepare() ? computes : engine.busy() ? waits : done;
        const int64_t most = ranks.max(own);
        if (most == done) break;
        if (most == waits) continue;
        if (own == computes) engine.compute(weights(which), before_layer);
        for (const auto& matrices : layers) decoder_.forget_packed(matrices);
        if (s.rounds.communicating) std::rethrow_exception(call->failure);  // a rank has ended
        finish_round();
      }
    } catch (...) {
      s.rounds.communicating = false;
      s.pending = {};
      engine.fail_all(std::current_exception());
      throw;
    }
    if (refused) std::rethrow_exception(refused);
    return results(*call);
  });
}

}  // namespace nlac
