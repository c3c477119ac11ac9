// A causal depthwise convolution over the last `kernel` tokens of each sequence, with SiLU, forward
// and backward:
//   y[t, c] = silu(p[t, c]),  p[t, c] = Σ_j weight[c, j] · x[t - kernel + 1 + j, c]
// Tokens before a sequence are zeros. No autograd. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace nlac {

// x [tokens, channels] of any type, packed sequences of `lengths`; weight [channels, kernel].
// Returns y [tokens, channels], f32 (f64 for f64). `past` [sequences, kernel - 1, channels], if
// any, are the rows before each sequence.
at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight,
                             const std::vector<int64_t>& lengths, const at::Tensor& past = {});

// `grad` [tokens, channels] f32 (f64) is the gradient at y. Returns that at x in grad's type, and
// adds that at the weight to `grad_weight` (undefined: not computed).
at::Tensor short_convolution_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                      const std::vector<int64_t>& lengths, at::Tensor grad_weight);

}  // namespace nlac
