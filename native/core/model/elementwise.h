// The layer's arithmetic between the matrix products: RMS normalisation, rotary positions, the
// gated activation. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include "core/model/config.h"
#include "core/model/rope.h"

namespace nlac {

// How a model normalises.
struct Norm {
  double eps;
  bool plus_one = false;  // multiplies by 1 + weight
  Norm(double eps) : eps(eps) {}
  Norm(const ModelConfig& config) : eps(config.rms_norm_eps), plus_one(config.norm_plus_one) {}
};

// x [..., n], of weight's type or float32, normalised over its last dimension in float32 (f64 for
// f64), rounded to weight's type, times weight [n]: the order of roundings of Hugging Face. With
// plus_one it is rounded after the product, as there.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, const Norm& norm);

// The same into y, of weight's type. x and y [tokens, heads, n] may have strided tokens and heads.
void rms_norm_heads(const at::Tensor& x, const at::Tensor& weight, const Norm& norm, at::Tensor y);

// Returns the gradient at x, plus `residual` of x's shape (undefined: none). Adds to `grad_weight`
// [n] (f32 or f64; undefined: omitted).
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             const Norm& norm, at::Tensor grad_weight, const at::Tensor& residual);

// Rotates, in place, the first dimensions of each head of x [tokens, heads, head_dim] (last
// dimension contiguous), as many as `rope` has, by its token's position, `positions` [tokens] i64.
// Dimension i pairs with i + dimensions / 2. `inverse` applies the transpose (backward).
void rotate(at::Tensor x, const Rope& rope, const at::Tensor& positions, bool inverse);

// x · sigmoid(gate), both [tokens, heads, n]; heads of the gate may be strided. Rounded once.
at::Tensor gate_by_sigmoid(const at::Tensor& x, const at::Tensor& gate);
// The gradient at the gate. That at x is gate_by_sigmoid of `grad`.
at::Tensor gate_by_sigmoid_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& gate);

// gate_up [tokens, 2n], gate first → silu(gate) · up, [tokens, n].
at::Tensor gated_silu(const at::Tensor& gate_up);
at::Tensor gated_silu_backward(const at::Tensor& grad, const at::Tensor& gate_up);  // → [tokens, 2n]

// The same with any activation of the gate.
at::Tensor gated(const at::Tensor& gate_up, Activation activation);
at::Tensor gated_backward(const at::Tensor& grad, const at::Tensor& gate_up, Activation activation);

// gpt-oss: gate_up [tokens, 2n], gate and up by turns → [tokens, n], with c = min(gate, limit):
// c · σ(alpha c) · (clamp(up, ± limit) + 1).
at::Tensor clamped_gate(const at::Tensor& gate_up, double limit, double alpha);
at::Tensor clamped_gate_backward(const at::Tensor& grad, const at::Tensor& gate_up, double limit,
                                 double alpha);  // → [tokens, 2n]

}  // namespace nlac
