// What a rank holds of the trained parameters if they are cut over ranks. Private to the learner.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "core/learner.h"
#include "core/learner/layer_schedule.h"
#include "core/ranks/shard_layout.h"

namespace nlac {

struct Learner::Shards {
  // The micro-batches of a loss call, the same number on every rank.
  struct Rounds {
    Scoring scoring = {};
    int64_t count = 0, finished = 0;
    std::vector<LayerStep> steps = {};  // of one round
    size_t at = 0;                      // steps done, over all rounds
    bool communicating = false;         // a collective has begun and not ended

    size_t end(int64_t round) const { return static_cast<size_t>(round) * steps.size(); }
  };

  ShardLayout layout;
  int stage;  // LearnerOptions::sharding
  // To compute with: whole units in the learner's type; at stage 3 this rank's parts of the layers,
  // which are the masters below, and are rounded when they are collected. θ̄'s are empty until it
  // exists. The reference's are used at stage 3 only, and all are in the learner's type.
  Units online = {}, target = {}, reference = {};
  // This rank's parts, float32. Where the units above are float32, these are the same or views.
  Units master = {}, target_master = {};
  // The gradients of this rank's texts, float32, whole units. From stage 2 on all layers share one,
  // which a layer's backward pass fills and the exchange after it empties.
  Units gradients = {};
  // From stage 2 on: this rank's parts of the layers' gradients, summed over the ranks. Undefined
  // elsewhere. A layer's sum is received in `scratch`.
  Units sums = {};
  at::Tensor scratch = {};
  Rounds rounds = {};
  Weights trained = {};   // the trained parameters of θ, views of `online` or of the buffers
  at::Tensor value = {};  // float32, the whole unit of the value head; Learner::master_ has views

  // Stage 3: whole layers while they are used. The layers' tensors of all weight sets are views of
  // the buffers, except those of the set that has been gathered for generation.
  std::array<at::Tensor, layer_buffers> buffers = {};
  std::array<std::function<void()>, layer_buffers> pending = {};  // waits until a buffer is filled
  std::optional<WeightSet> gathered = {};

  bool exchanges_layers() const { return stage >= 2; }
  bool divides_weights() const { return stage >= 3; }
  // Whether the gradients of a unit are exchanged during the backward pass.
  bool exchanged(size_t unit) const { return exchanges_layers() && unit < layout.layers(); }
  // Whether a rank holds only its part of a unit's copies to compute with.
  bool divided(size_t unit) const { return divides_weights() && unit < layout.layers(); }

  const Units& units(WeightSet which) const {
    return which == WeightSet::online ? online : which == WeightSet::target ? target : reference;
  }
  at::Tensor buffer(size_t layer) const {
    return buffers[buffer_of(layer)].narrow(0, 0, layout.elements(layer));
  }
  // Masters for `units` to compute with, which are of `type`: views of them, or zeroed.
  Units masters_on(const Units& units, at::ScalarType type) const {
    Units own = own_of(units);
    for (size_t u = 0; u < units.size(); ++u)
      if (type != at::kFloat && !divided(u)) own[u] = layout.own(u, units[u].options().dtype(at::kFloat));
    return own;
  }
  // This rank's part of a layer in its place in `whole`, rounded to its type: what it sends.
  at::Tensor own_in(const at::Tensor& whole, const at::Tensor& part, size_t layer) const {
    return layout.own_of(layer, whole).copy_(part);
  }
  // This rank's parts of units to compute with, as views.
  Units own_of(const Units& units) const {
    Units own;
    for (size_t u = 0; u < units.size(); ++u)
      own.push_back(divided(u) ? units[u] : layout.own_of(u, units[u]));
    return own;
  }
};

}  // namespace nlac
