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
// Returns y [tokens, channels], f32 (f64 for f64). `past`, unless empty, has the rows before each
// sequence, [kernel - 1, channels] of y's type. On a CPU a token's bits depend only on its row and
// those before it.
at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight,
                             const std::vector<int64_t>& lengths, const std::vector<at::Tensor>& past = {});

// `grad` [tokens, channels] f32 (f64) is the gradient at y. Writes that at x to `at_x`, of x's type
// and shape, and adds that at the weight to `grad_weight` (undefined: not computed). Rows of x and
// at_x may be strided.
void short_convolution_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                const std::vector<int64_t>& lengths, at::Tensor at_x, at::Tensor grad_weight);

}  // namespace nlac
