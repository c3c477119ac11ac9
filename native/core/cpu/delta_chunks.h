// The gated delta rule by chunks of tokens on a CPU in float32, forward and backward: the formulas of
// core/model/delta_rule.h for one head of one sequence, with buffers that stay in the processor's
// cache. Thread rule: pure functions of their arguments; callers split the work.
#pragma once

#include <cstdint>

namespace nlac::cpu {

constexpr int64_t kDeltaChunk = 64;  // tokens

// Rows of an input or of a gradient, `stride` apart.
template <typename Number>
struct DeltaRows {
  Number* data;
  int64_t stride;
  Number* at(int64_t row) const { return data + row * stride; }
};

// One head's inputs, or (of float) its gradients.
template <typename Number>
struct DeltaHead {
  DeltaRows<Number> q, k, v, decay, beta;  // of key_dim, key_dim, value_dim, 1 and 1 numbers
};

struct DeltaSizes {
  int64_t tokens, key_dim, value_dim;
};

// `states` [chunks + 1, key_dim, value_dim], `state_stride` apart: the first is read, the others are
// written.
void delta_chunks(const DeltaSizes& sizes, const DeltaHead<const float>& head, float* states,
                  int64_t state_stride, const DeltaRows<float>& output);

// Given the gradient at the output, and the states. With `add`, the gradients at q and k are added to
// what `into` has, as those of other heads with the same keys.
void delta_chunks_backward(const DeltaSizes& sizes, const DeltaHead<const float>& head, const float* states,
                           int64_t state_stride, const DeltaRows<const float>& grad,
                           const DeltaHead<float>& into, bool add);

}  // namespace nlac::cpu
