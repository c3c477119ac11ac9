// The gated delta net, a token mixer with a state of constant size (Yang et al., "Gated Delta
// Networks", as Qwen3-Next and Qwen3.5 build it), between its input and output projections:
//   q, k, v = short_convolution(q, k, v), each key head of q and k of length 1, q / √key_dim
//   g = -exp(decay_log) · softplus(a + decay_bias), β = sigmoid(b)
//   o = delta_rule(q, k, v, g, β)
//   output = o / rms(o) · norm · silu(z), per head
// Between its input and its output everything is float32 (float64 for float64). No autograd. Thread
// rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/model/delta_rule.h"
#include "core/model/gated_delta_shape.h"

namespace nlac {

// Of the model's type; gradients of the same shapes are f32 (f64).
struct GatedDeltaWeights {
  at::Tensor convolution;            // [channels, kernel]
  at::Tensor decay_log, decay_bias;  // [heads], called A_log and dt_bias in model files
  at::Tensor norm;                   // [value_dim]
};

// `projected` [tokens, projected]: a token's q, k, v, z, b, a side by side, of packed sequences of
// `lengths`.
struct GatedDelta {
  at::Tensor output;  // [tokens, values], of projected's type
  DeltaResult rule;   // for backward: o and the states, linear in the length
};
GatedDelta gated_delta(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                       const at::Tensor& projected, const std::vector<int64_t>& lengths);

// Returns the gradient at `projected`, of its type, given that at the output. Adds the weights'
// gradients to `into` (undefined ones are not computed).
at::Tensor gated_delta_backward(const at::Tensor& grad, const GatedDeltaShape& shape,
                                const GatedDeltaWeights& weights, const at::Tensor& projected,
                                const std::vector<int64_t>& lengths, const DeltaResult& rule,
                                const GatedDeltaWeights& into);

// What a text's next token needs of those before it. Zeros before its first token. f32, f64 for
// float64 models; contiguous.
struct DeltaState {
  at::Tensor recurrent;  // [heads, key_dim, value_dim]
  at::Tensor inputs;     // [kernel - 1, channels], the convolution's last inputs
  static DeltaState zeros(const GatedDeltaShape& shape, at::ScalarType dtype, at::Device device);
};
struct DeltaSlice {
  int64_t fresh;     // rows of the packed step that are this text's, in its order
  DeltaState state;  // advanced in place
};

// Returns the output of the slices' rows, one slice after another, [tokens, values]. In float32 or
// bfloat16, on a CPU and in the shapes that a GPU's kernels support, the recurrence advances token by
// token: a row's result and the states are the same to the last bit for every batch and every chunking of
// a text's past.
at::Tensor gated_delta_steps(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                             const at::Tensor& projected, const std::vector<DeltaSlice>& slices);

}  // namespace nlac
