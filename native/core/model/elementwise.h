// The layer's arithmetic between the matrix products: RMS normalisation, rotary positions, the
// gated activation. Thread rule: the learner's thread.
#pragma once

#include <torch/torch.h>

#include "core/model/decoder.h"

namespace nlac {

// x [..., n], of weight's type or float32, normalised over its last dimension in float32 (f64 for
// f64), rounded to weight's type, times weight [n]: the order of roundings of Hugging Face.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Returns the gradient at x, plus `residual` of x's shape (undefined: none). Adds to `grad_weight`
// [n] (f32 or f64; undefined: omitted).
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps, at::Tensor grad_weight, const at::Tensor& residual);

// Rotates, in place, each head of x [tokens, heads, head_dim] (last dimension contiguous) by its
// token's position, `positions` [tokens] i64. Dimension i pairs with i + head_dim / 2. `inverse`
// applies the transpose (backward).
void rotate(at::Tensor x, const Rope& rope, const at::Tensor& positions, bool inverse);

// gate_up [tokens, 2n], gate first → silu(gate) · up, [tokens, n].
at::Tensor gated_silu(const at::Tensor& gate_up);
at::Tensor gated_silu_backward(const at::Tensor& grad, const at::Tensor& gate_up);  // → [tokens, 2n]

}  // namespace nlac
