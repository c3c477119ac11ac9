// What a rank holds of the trained parameters if they are cut over ranks. Private to the learner.
#pragma once

#include "core/learner.h"
#include "core/ranks/shard_layout.h"

namespace nlac {

struct Learner::Shards {
  ShardLayout layout;
  int stage;  // LearnerOptions::sharding
  // Whole units in the learner's type, to compute with. θ̄'s are empty until it exists.
  Units online = {}, target = {};
  // This rank's parts, float32. In float32 they are views of the units above.
  Units master = {}, target_master = {};
  // The gradients of this rank's texts, float32, whole units. At stage 2 all layers share one,
  // which a layer's backward pass fills and the exchange after it empties.
  Units gradients = {};
  // Stage 2: this rank's parts of the layers' gradients, summed over the ranks. Undefined
  // elsewhere.
  Units sums = {};
  int64_t exchanges = 0;    // of layers' gradients, in this loss call
  bool exchanging = false;  // an exchange has begun and not ended
  Weights trained = {};     // the trained parameters of θ, views of `online`
  at::Tensor value = {};    // float32, the whole unit of the value head; Learner::master_ has views

  bool exchanges_layers() const { return stage == 2; }
  // Whether the gradients of a unit are exchanged during the backward pass.
  bool exchanged(size_t unit) const { return exchanges_layers() && unit < layout.layers(); }
};

}  // namespace nlac
