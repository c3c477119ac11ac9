// What the layers of one pass share. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/model/attention.h"
#include "core/model/linear.h"
#include "core/model/rope.h"
#include "core/model/state_store.h"

namespace nlac {

// Keys and values, normalised and rotated, that a layer lends to later ones.
struct LentKeys {
  at::Tensor keys, values;  // [tokens, kv_heads, head_dim]
  // In backward: the sums of the borrowers' gradients, float32 (f64 for f64); undefined: none yet.
  at::Tensor at_keys, at_values;
};

// Training: whole sequences, packed into one stream [tokens, hidden].
struct PackedPass {
  Sequences sequences;   // their lengths sum to tokens
  at::Tensor positions;  // [tokens] i64, in their sequences
  RopeTables ropes;
  // [experts], what the load-balance loss adds to the gradient at each probability of each token's
  // router; undefined: no such loss.
  at::Tensor at_probabilities;
  // By the layer that computes them. They are kept until the pass ends, with recomputation too, because
  // backward reaches the borrowers first.
  std::shared_ptr<std::map<int64_t, LentKeys>> lent = {};
  // [tokens, layers, n] of layer_inputs.h; undefined: the model has none. In backward, the gradients at
  // them, undefined if nobody needs them.
  at::Tensor layer_inputs = {}, at_layer_inputs = {};
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
  at::Tensor layer_inputs = {};  // as above
};

}  // namespace nlac
