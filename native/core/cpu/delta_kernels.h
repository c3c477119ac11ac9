// The arithmetic of a gated delta net by steps, for inference on a CPU: the short convolution, unit
// vectors, the recurrence and the gated norm; and the gate of attention. Compiled for several
// instruction sets and chosen at run time. Computes in float32. A token's result depends only on
// its inputs and the state before it, bit for bit, not on how many tokens a call has. Thread rule:
// pure functions of their arguments; callers split the work.
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

// y = x · sigmoid(gate), [rows, n]; rows of the gate are gate_stride apart.
template <typename Number>
using Gate = void(const Number* x, const Number* gate, int64_t gate_stride, int64_t rows, int64_t n,
                  Number* y);

struct Kernels {
  void (*convolve)(const Convolution<float>&);
  void (*convolve_bf16)(const Convolution<Bits>&);
  // x [rows, n], rows `stride` apart ← x · factor / sqrt(|x|² + eps)
  void (*unit)(float* x, int64_t rows, int64_t stride, int64_t n, float eps, float factor);
  void (*recur)(const Recurrence&);
  void (*gated_norm)(const GatedNorm<float>&);
  void (*gated_norm_bf16)(const GatedNorm<Bits>&);
  Gate<float>* gate;
  Gate<Bits>* gate_bf16;
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

}  // namespace nlac::delta_kernels
