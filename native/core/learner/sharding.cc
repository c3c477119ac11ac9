// Training on several ranks: parameters that are cut over them, and sums of gradients. Without
// ranks these functions return the learner's own tensors.
#include "core/learner/sharding.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "core/learner/internal.h"

namespace nlac {

using namespace learner;

// --- parameters ----------------------------------------------------------------------------------

// Weights of the same parameters, made from each one's index in Weights::list().
static Weights map_indexed(const Weights& weights,
                           const std::function<at::Tensor(size_t, const at::Tensor&)>& make) {
  const std::vector<at::Tensor> list = weights.list();
  return weights.map([&](const at::Tensor& tensor) {
    const auto same = [&](const at::Tensor& other) { return other.is_same(tensor); };
    return make(static_cast<size_t>(std::find_if(list.begin(), list.end(), same) - list.begin()), tensor);
  });
}

Weights Learner::on_units(Units& units) const {
  const Shards& s = *shards_;
  const at::TensorOptions type = at::TensorOptions().dtype(options_.dtype).device(options_.device);
  // Of θ and θ̄, this rank's parts of divided units are the masters themselves.
  for (size_t u = 0; u < s.layout.units(); ++u)
    units.push_back(s.divided(u) ? s.layout.own(u, type.dtype(at::kFloat)) : s.layout.whole(u, type));
  return map_indexed(master_, [&](size_t i, const at::Tensor& shape) {
    const size_t unit = s.layout.unit_of(i);
    return s.layout.view(i, shape, s.divided(unit) ? s.buffer(unit) : units[unit]);
  });
}

void Learner::shard() {
  const RankGroup& ranks = *options_.ranks;
  const Weights loaded = std::exchange(master_, master_.like(at::kFloat, at::kMeta));
  shards_ =
      std::make_shared<Shards>(Shards{ShardLayout(loaded, ranks.rank(), ranks.size()), options_.sharding});
  Shards& s = *shards_;
  const at::TensorOptions real = at::TensorOptions().dtype(at::kFloat).device(options_.device);
  if (s.divides_weights()) {
    const int64_t largest = s.layout.largest_layer();
    for (at::Tensor& buffer : s.buffers) buffer = at::zeros({largest}, real.dtype(options_.dtype));
  }
  s.trained = on_units(s.online);
  if (loaded.value.defined()) {
    // The value head computes in float32, so each rank has its whole master.
    master_.value = at::empty(loaded.value.sizes(), real);
    master_.value_bias = at::empty(loaded.value_bias.sizes(), real);
    s.value = s.layout.whole(s.layout.value_unit(), real);
    s.layout.point(master_.list(), s.layout.value_unit(), s.value);
  }
  s.master = s.masters_on(s.online, options_.dtype);
  set_masters(loaded);
  online_ = on_base(s.trained);
}

void Learner::set_masters(const Weights& whole) {
  Shards& s = *shards_;
  set_computing(s.online, s.trained.list(), whole);
  const std::vector<at::Tensor> own = s.layout.pieces(s.master), cut = s.layout.cut(whole.list());
  for (size_t i = 0; i < own.size(); ++i) own[i].copy_(cut[i]);
  if (!whole.value.defined()) return;
  master_.value.copy_(whole.value);
  master_.value_bias.copy_(whole.value_bias);
}

// `to` is the list of weights on `units`.
void Learner::set_computing(const Units& units, const std::vector<at::Tensor>& to,
                            const Weights& whole) const {
  const Shards& s = *shards_;
  const std::vector<at::Tensor> from = whole.list();
  for (size_t i = 0; i < to.size(); ++i)
    if (!s.divided(s.layout.unit_of(i))) to[i].copy_(from[i]);
  if (!s.divides_weights()) return;
  const std::vector<at::Tensor> own = s.layout.pieces(s.own_of(units)), cut = s.layout.cut(from);
  for (size_t i = 0; i < own.size(); ++i) own[i].copy_(cut[i]);
}

void Learner::make_sharded_target() {
  Shards& s = *shards_;
  Units target;
  const Weights trained = on_units(target);
  Units master = s.masters_on(target, options_.dtype);
  for (size_t u = 0; u < target.size(); ++u) {
    target[u].copy_(s.online[u]);
    master[u].copy_(s.master[u]);
  }
  s.target = std::move(target);
  s.target_master = std::move(master);
  target_ = on_base(trained);
}

void Learner::set_target_masters(const Weights& whole) {
  Shards& s = *shards_;
  set_computing(s.target, target_->list(), whole);
  const std::vector<at::Tensor> own = s.layout.pieces(s.target_master), cut = s.layout.cut(whole.list());
  for (size_t i = 0; i < own.size(); ++i) own[i].copy_(cut[i]);
}

void Learner::make_sharded_reference() {
  Shards& s = *shards_;
  Units reference;
  const Weights made = on_units(reference);
  for (size_t u = 0; u < reference.size(); ++u) {
    if (s.divided(u)) reference[u] = reference[u].to(options_.dtype);
    reference[u].copy_(s.online[u]);
  }
  s.reference = std::move(reference);
  reference_ = on_base(made);
}

void Learner::restore_sharded_reference() {
  Shards& s = *shards_;
  const Units own = s.own_of(s.reference);
  for (size_t u = 0; u < own.size(); ++u) {
    s.online[u].copy_(s.reference[u]);
    s.master[u].copy_(own[u]);
  }
  if (!master_.value.defined()) return;
  master_.value.copy_(reference_->value);
  master_.value_bias.copy_(reference_->value_bias);
}

void Learner::set_sharded_reference(const Weights& whole) {
  make_sharded_reference();
  set_computing(shards_->reference, reference_->list(), whole);
}

Learner::Held Learner::held(WeightSet which) const {
  const bool online = which == WeightSet::online;
  if (shards_) {
    const Shards& s = *shards_;
    return {s.layout.pieces(online ? s.master : s.target_master),
            s.layout.pieces(s.own_of(online ? s.online : s.target))};
  }
  if (online) return {master_.list(), online_.list()};
  return {target_master_->list(), target_->list()};
}

void Learner::collect(WeightSet which) {
  if (!shards_) return;
  Shards& s = *shards_;
  const Units& units = s.units(which);
  for (size_t u = 0; u < units.size(); ++u)
    if (!s.divided(u)) options_.ranks->all_gather(units[u], s.layout.own_of(u, units[u]));
  if (which != WeightSet::online || !master_.value.defined()) return;
  options_.ranks->all_gather(s.value, s.master[s.layout.value_unit()].clone());
}

SumOverRanks Learner::sum_over_ranks() const {
  if (!shards_) return {};
  return [ranks = options_.ranks](double value) { return ranks->sum(value); };
}

// --- whole parameters, on rank 0 -----------------------------------------------------------------

bool Learner::writes() const { return !options_.ranks || options_.ranks->rank() == 0; }

Learner::Saved Learner::saved_parts(Units own) {
  return {.own = [own = std::move(own)] {
    Units on_cpu;
    for (const at::Tensor& part : own) on_cpu.push_back(part.to(at::kCPU, at::kFloat));
    return on_cpu;
  }};
}

Learner::Saved Learner::saved_masters() const {
  return shards_ ? saved_parts(shards_->master) : Saved{master_};
}

Learner::Saved Learner::saved_target_masters() const {
  return shards_ ? saved_parts(shards_->target_master) : Saved{target_master_};
}

Learner::Saved Learner::saved_reference() const {
  const bool divided = shards_ && shards_->divides_weights();
  return divided ? saved_parts(shards_->own_of(shards_->reference)) : Saved{reference_};
}

Learner::Saved Learner::saved_pieces(const std::vector<at::Tensor>& pieces) const {
  return {.own = [pieces, shards = shards_] {
    Units own = shards->layout.all_own(at::kFloat);
    const std::vector<at::Tensor> places = shards->layout.pieces(own);
    for (size_t i = 0; i < places.size(); ++i) places[i].copy_(pieces[i]);
    return own;
  }};
}

std::optional<Weights> Learner::whole(const Saved& saved) const {
  if (!saved.own) return writes() ? saved.whole : std::nullopt;
  const ShardLayout& layout = shards_->layout;
  RankGroup& ranks = options_.ranks->host();
  Units own, all(layout.units());
  std::optional<Weights> whole;
  ranks.together([&] {
    own = saved.own();
    if (!writes()) return;
    whole = master_.like(at::kFloat, at::kCPU);
    all = layout.all_whole(at::kFloat);
  });
  for (size_t u = 0; u < own.size(); ++u) {
    ranks.gather(all[u], own[u]);
    if (whole) layout.point(whole->list(), u, all[u]);
  }
  return whole;
}

std::optional<Weights> Learner::whole_masters() const { return whole(saved_masters()); }

std::optional<Weights> Learner::whole_target_masters() const { return whole(saved_target_masters()); }

void Learner::set_moments(AdamWMoments& moments, const AdamWMoments& whole) const {
  moments.steps = whole.steps;
  for (const auto list : {&AdamWMoments::m, &AdamWMoments::v}) {
    (moments.*list).clear();
    if (!shards_) {
      moments.*list = whole.*list;
      continue;
    }
    for (const at::Tensor& piece : shards_->layout.cut(whole.*list))
      (moments.*list).push_back(piece.to(options_.device, at::kFloat, false, /*copy=*/true));
  }
}

// --- gradients -----------------------------------------------------------------------------------

void Learner::make_sharded_gradients() {
  Shards& s = *shards_;
  const at::TensorOptions real = at::TensorOptions().dtype(at::kFloat).device(options_.device);
  Units units(s.layout.units()), sums(s.layout.units());
  at::Tensor shared, scratch;
  if (s.exchanges_layers()) {
    const int64_t largest = s.layout.largest_layer();
    shared = at::zeros({largest}, real);
    scratch = at::empty({largest / options_.ranks->size()}, real);
  }
  for (size_t u = 0; u < units.size(); ++u) {
    units[u] = s.exchanged(u) ? shared.narrow(0, 0, s.layout.elements(u)) : s.layout.whole(u, real);
    if (s.exchanged(u)) sums[u] = s.layout.own(u, real);
  }
  // Views from the start: a GPU may have no memory for all gradients at once.
  Weights gradients = map_indexed(master_, [&](size_t i, const at::Tensor& shape) {
    return s.layout.view(i, shape, units[s.layout.unit_of(i)]);
  });
  s.gradients = std::move(units);
  s.scratch = std::move(scratch);
  s.sums = std::move(sums);
  gradients_ = std::move(gradients);
}

std::vector<at::Tensor> Learner::summed_gradients() {
  make_gradients();
  if (!options_.ranks) return gradients_->list();
  Units own, sums;
  if (shards_) {
    const Shards& s = *shards_;
    sums.resize(s.layout.units());
    options_.ranks->together([&] {
      for (size_t u = 0; u < s.layout.units(); ++u) {
        own.push_back(s.exchanged(u) ? s.sums[u] : s.layout.own_of(u, s.gradients[u]));
        if (!s.exchanged(u)) sums[u] = at::empty_like(own[u]);
      }
    });
  }
  try {
    if (!shards_) {
      for (const at::Tensor& gradient : gradients_->list()) options_.ranks->all_reduce(gradient);
      return gradients_->list();
    }
    for (size_t u = 0; u < own.size(); ++u) {
      if (shards_->exchanged(u)) continue;
      options_.ranks->reduce_scatter(sums[u], shards_->gradients[u]);
      own[u].copy_(sums[u]);
    }
    return shards_->layout.pieces(own);
  } catch (...) {
    discard_gradients();  // some are sums already, which a repeated step would sum again
    throw;
  }
}

void Learner::clear_gradients() {
  if (!shards_) return;  // the step has zeroed them
  const Shards& s = *shards_;
  for (size_t u = 0; u < s.gradients.size(); ++u)
    if (!s.exchanged(u)) s.gradients[u].zero_();  // the others are empty since their exchange
}

std::optional<Learner::Saved> Learner::pending_gradients() {
  if (!options_.ranks) return gradients_ ? std::optional(Saved{gradients_}) : std::nullopt;
  RankGroup& ranks = *options_.ranks;
  if (ranks.max(gradients_.has_value()) == 0) return {};
  Units own;
  ranks.together([&] {
    make_gradients();
    if (!shards_) return;
    for (size_t u = 0; u < shards_->layout.units(); ++u)
      own.push_back(at::empty_like(shards_->exchanged(u) ? shards_->sums[u] : shards_->master[u]));
  });
  const auto keep_on_first = [&](const at::Tensor& sum) {
    if (ranks.rank() != 0) sum.zero_();
  };
  if (!shards_) {
    for (const at::Tensor& gradient : gradients_->list()) {
      ranks.all_reduce(gradient);
      keep_on_first(gradient);
    }
    return Saved{gradients_};
  }
  const Shards& s = *shards_;
  for (size_t u = 0; u < own.size(); ++u) {
    if (s.exchanged(u)) {
      own[u].copy_(s.sums[u]);
      continue;
    }
    ranks.all_reduce(s.gradients[u]);
    own[u].copy_(s.layout.own_of(u, s.gradients[u]));
    keep_on_first(s.gradients[u]);
  }
  return saved_parts(std::move(own));
}

void Learner::set_pending_gradients(const Weights& whole) {
  const std::vector<at::Tensor> from = whole.list(), to = make_gradients().list();
  const bool first = writes();
  for (size_t i = 0; i < to.size(); ++i) {
    const bool exchanged = shards_ && shards_->exchanged(shards_->layout.unit_of(i));
    if (first && !exchanged) to[i].copy_(from[i]);
  }
  if (!shards_ || !shards_->exchanges_layers()) return;
  const ShardLayout& layout = shards_->layout;
  Units sums = shards_->sums;
  for (size_t u = 0; u < sums.size(); ++u)  // pieces() needs every unit
    if (!sums[u].defined()) sums[u] = layout.own(u, shards_->master[u].options());
  const std::vector<at::Tensor> own = layout.pieces(sums), cut = layout.cut(from);
  for (size_t i = 0; i < own.size(); ++i) own[i].copy_(cut[i]);
}

void Learner::discard_gradients() {
  gradients_.reset();
  if (!shards_) return;
  shards_->gradients.clear();
  shards_->sums.clear();
  shards_->scratch.reset();
}

// --- Q heads -------------------------------------------------------------------------------------

void Learner::reset_sharded_q_heads() {
  Shards& s = *shards_;
  // The heads are made from θ's whole float32 matrix, so every rank collects it.
  const size_t rest = s.layout.layers();
  at::Tensor all;
  options_.ranks->together([&] {
    all = s.layout.whole(rest, s.master[rest].options());
    s.layout.own_of(rest, all).copy_(s.master[rest]);
  });
  options_.ranks->all_gather(all, s.layout.own_of(rest, all));
  // The layers' tensors keep shapes without memory: they are not needed.
  const Weights whole = map_indexed(master_, [&](size_t i, const at::Tensor& shape) {
    return s.layout.unit_of(i) == rest ? s.layout.view(i, shape, all) : shape;
  });
  whole.reset_q_heads(base_ ? *base_ : whole);
  const std::vector<at::Tensor> from = whole.list(), cut = s.layout.cut(from);
  const size_t heads = from.size() - 2 * master_.q.size();  // they are last in the list
  const auto set = [&](const Units& master, const std::vector<at::Tensor>& list) {
    for (size_t i = heads; i < from.size(); ++i) list[i].copy_(from[i]);
    const std::vector<at::Tensor> pieces = s.layout.pieces(master);
    for (size_t i = 0; i < pieces.size(); ++i)
      if (s.layout.tensor_of(i) >= heads) pieces[i].copy_(cut[i]);
  };
  set(s.master, online_.list());
  if (target_) set(s.target_master, target_->list());
  if (gradients_) {
    const std::vector<at::Tensor> gradients = gradients_->list();
    for (size_t i = heads; i < gradients.size(); ++i) gradients[i].zero_();
  }
  for (auto& [name, moments] : moments_) {
    for (size_t i = 0; i < moments.m.size(); ++i) {
      if (s.layout.tensor_of(i) < heads) continue;
      moments.m[i].zero_();
      moments.v[i].zero_();
    }
  }
}

}  // namespace nlac
