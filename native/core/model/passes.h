// What the layers of one pass share. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/model/attention.h"
#include "core/model/linear.h"
#include "core/model/rope.h"
#include "core/model/state_store.h"

namespace nlac {

// Training: whole sequences, packed into one stream [tokens, hidden].
struct PackedPass {
  std::vector<int64_t> lengths;  // of the sequences; they sum to tokens
  at::Tensor positions;          // [tokens] i64, in their sequences
  RopeTables ropes;
  // [experts], what the load-balance loss adds to the gradient at each probability of each token's
  // router; undefined: no such loss.
  at::Tensor at_probabilities;
};

// Inference: slices of texts, one after another, that continue what their stores hold.
struct InferencePass {
  at::ScalarType type;   // of the weights
  at::Tensor positions;  // [tokens] i64, in their texts
  const RopeTables& ropes;
  const std::vector<KvSlice>& slices;
  const CachedAttention& attention;
  const StateStore& states;
  PackedMatrices& matrices;
};

}  // namespace nlac
