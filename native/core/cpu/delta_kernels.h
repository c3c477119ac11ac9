// The arithmetic of a gated delta net on a CPU: the short convolution, unit vectors and the gated
// norm, forward and backward; the recurrence by steps, for inference; what delta_chunks.h needs
// beside products; and the gate of attention. Compiled for several instruction sets and chosen at
// run time. Computes in float32. A token's result depends only on its inputs and the state before
// it, bit for bit, not on how many tokens a call has. Thread rule: pure functions of their
// arguments; callers split the work.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cpu/bf16_kernels.h"

namespace nlac::delta_kernels {

using bf16::Bits;

// The causal convolution of `channels` channels over `tokens` rows of x, `stride` apart:
//   y[t, c] = silu(Σ_j weight[j, c] · x[t - kernel + 1 + j, c])
// Rows before the first are past[kernel - 1, past_stride]. y [tokens, channels].
template <typename Number>
struct Convolution {
  int64_t tokens, channels, kernel;
  const Number* x;
  int64_t stride;
  const float *past, *weight;  // weight [kernel, weight_stride]
  int64_t past_stride, weight_stride;
  float* y;
  int64_t y_stride;
};

// The convolution's gradients: at x (rows at_stride apart), and added to those at the weight
// [kernel, weight_stride] (null: left out), given those at y. `scratch` [tokens, channels].
template <typename Number>
struct ConvolutionBackward {
  Convolution<Number> forward;  // without y
  const float* grad;            // [tokens, grad_stride]
  int64_t grad_stride;
  Number* at_x;
  int64_t at_stride;
  float* at_weight;
  float* scratch;
};

// One head's recurrence over `tokens` rows. Strides are between rows.
//   S ← decay[t] S,  S ← S + beta[t] k_t (v_t - Sᵀ k_t)ᵀ,  y_t = Sᵀ q_t
struct Recurrence {
  int64_t tokens, key_dim, value_dim;
  const float *q, *k, *v;
  int64_t key_stride, value_stride;
  const float *decay, *beta;  // decay is e^g
  int64_t gate_stride;
  float* state;  // S [key_dim, value_dim], in place
  float* y;
  int64_t y_stride;
};

// y = x / rms(x) · weight · silu(gate), rows of n.
template <typename Number>
struct GatedNorm {
  int64_t rows, n;
  const float* x;  // [rows, n]
  const Number* gate;
  int64_t gate_stride;
  const Number* weight;  // [n]
  float eps;
  Number* y;  // [rows, n]
};

// Its gradients, given that at y: at x, at the gate (strides as the gate's), and added to that at
// the weight [n] (null: left out).
template <typename Number>
struct GatedNormBackward {
  GatedNorm<Number> forward;  // without y
  const Number* grad;         // [rows, n]
  float* at_x;                // [rows, n]
  Number* at_gate;
  float* at_weight;
};

// y = x · sigmoid(gate), [rows, n]; rows of the gate are gate_stride apart.
template <typename Number>
using Gate = void(const Number* x, const Number* gate, int64_t gate_stride, int64_t rows, int64_t n,
                  Number* y);

struct Kernels {
  void (*convolve)(const Convolution<float>&);
  void (*convolve_bf16)(const Convolution<Bits>&);
  // x [rows, n], rows `stride` apart ← x · factor / sqrt(|x|² + eps)
  void (*unit)(float* x, int64_t rows, int64_t stride, int64_t n, float eps, float factor);
  // grad [rows, n], the gradient at unit's result of x → that at x, into at_x. Rows of x and at_x
  // are `stride` apart.
  void (*unit_backward)(const float* grad, const float* x, int64_t rows, int64_t stride, int64_t n, float eps,
                        float factor, float* at_x);
  void (*recur)(const Recurrence&);
  void (*gated_norm)(const GatedNorm<float>&);
  void (*gated_norm_bf16)(const GatedNorm<Bits>&);
  Gate<float>* gate;
  Gate<Bits>* gate_bf16;
  void (*convolve_backward)(const ConvolutionBackward<float>&);
  void (*convolve_backward_bf16)(const ConvolutionBackward<Bits>&);
  void (*gated_norm_backward)(const GatedNormBackward<float>&);
  void (*gated_norm_backward_bf16)(const GatedNormBackward<Bits>&);
  // x [n, width] ← the solution of (I + diag(beta) L) x' = x or, if `transposed`, of (I + diag(beta)
  // L)ᵀ x' = x. L [n, n], rows `stride` apart, is read below its diagonal only.
  void (*solve)(const float* lower, int64_t stride, const float* beta, bool transposed, int64_t n,
                int64_t width, float* x);
  // y [rows, n] = or (with `add`) += factors[row] · x; strides between rows.
  void (*scale_rows)(const float* x, int64_t x_stride, const float* factors, int64_t rows, int64_t n,
                     bool add, float* y, int64_t y_stride);
  float (*dot)(const float* a, const float* b, int64_t n);
};

// The variants that this processor runs, the fastest first.
const std::vector<const Kernels*>& all_kernels();
inline const Kernels& kernels() { return *all_kernels().front(); }

inline void gate(const float* x, const float* gate, int64_t gate_stride, int64_t rows, int64_t n, float* y) {
  kernels().gate(x, gate, gate_stride, rows, n, y);
}
inline void gate(const Bits* x, const Bits* gate, int64_t gate_stride, int64_t rows, int64_t n, Bits* y) {
  kernels().gate_bf16(x, gate, gate_stride, rows, n, y);
}
inline void convolve(const Convolution<float>& work) { kernels().convolve(work); }
inline void convolve(const Convolution<Bits>& work) { kernels().convolve_bf16(work); }
inline void convolve_backward(const ConvolutionBackward<float>& work) { kernels().convolve_backward(work); }
inline void convolve_backward(const ConvolutionBackward<Bits>& work) {
  kernels().convolve_backward_bf16(work);
}
inline void gated_norm(const GatedNorm<float>& work) { kernels().gated_norm(work); }
inline void gated_norm(const GatedNorm<Bits>& work) { kernels().gated_norm_bf16(work); }
inline void gated_norm_backward(const GatedNormBackward<float>& work) { kernels().gated_norm_backward(work); }
inline void gated_norm_backward(const GatedNormBackward<Bits>& work) {
  kernels().gated_norm_backward_bf16(work);
}

}  // namespace nlac::delta_kernels
