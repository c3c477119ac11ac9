// Norms, gates and rotations.
#include "core/cpu/bf16_kernels.h"

#if defined(__x86_64__)

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cpu/bf16_vectors.h"

namespace nlac::bf16 {
namespace {

// Returns the minimum number of rows per thread, so that few rows do not wake other threads.
int64_t rows_at_once(int64_t n) { return std::max<int64_t>(1, 16384 / n); }

template <typename In>
NLAC_AVX512 float inverse_rms(const In* x, int64_t n, float eps) {
  __m512 sum = _mm512_setzero_ps();
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    const __m512 value = load16(x + i, mask);
    sum = _mm512_fmadd_ps(value, value, sum);
  });
  return 1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / static_cast<float>(n) + eps);
}

template <typename In>
NLAC_AVX512 void rms_norm_row(const In* x, int64_t n, const Bits* weight, bool plus_one, float eps, Bits* y) {
  const __m512 scale = _mm512_set1_ps(inverse_rms(x, n, eps)), one = _mm512_set1_ps(1.0f);
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    const __m512 normed = _mm512_mul_ps(load16(x + i, mask), scale), factor = load16(weight + i, mask);
    store16(y + i, mask,
            plus_one ? _mm512_mul_ps(normed, _mm512_add_ps(one, factor))
                     : _mm512_mul_ps(rounded(normed), factor));
  });
}

NLAC_AVX512 void rms_norm_backward_row(const Bits* grad, const Bits* x, const Bits* residual, int64_t n,
                                       const Bits* weight, bool plus_one, float eps, Bits* grad_x,
                                       float* grad_weight) {
  const __m512 shift = _mm512_set1_ps(plus_one ? 1.0f : 0.0f);
  const float factor = inverse_rms(x, n, eps);
  const __m512 scale = _mm512_set1_ps(factor);
  __m512 dot = _mm512_setzero_ps();
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    const __m512 upstream = load16(grad + i, mask), normalised = _mm512_mul_ps(load16(x + i, mask), scale);
    const __m512 factor = _mm512_add_ps(shift, load16(weight + i, mask));
    dot = _mm512_fmadd_ps(_mm512_mul_ps(upstream, factor), normalised, dot);
    if (grad_weight)
      _mm512_mask_storeu_ps(
          grad_weight + i, mask,
          _mm512_fmadd_ps(upstream, normalised, _mm512_maskz_loadu_ps(mask, grad_weight + i)));
  });
  const __m512 along = _mm512_set1_ps(_mm512_reduce_add_ps(dot) / static_cast<float>(n));
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    const __m512 normalised = _mm512_mul_ps(load16(x + i, mask), scale);
    const __m512 factor = _mm512_add_ps(shift, load16(weight + i, mask));
    const __m512 direct = _mm512_mul_ps(load16(grad + i, mask), factor);
    __m512 result = _mm512_mul_ps(_mm512_fnmadd_ps(normalised, along, direct), scale);
    if (residual) result = _mm512_add_ps(result, load16(residual + i, mask));
    store16(grad_x + i, mask, result);
  });
}

NLAC_AVX512_INLINE __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  return _mm512_div_ps(one, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

NLAC_AVX512 void gated_silu_row(const Bits* gate, const Bits* up, int64_t n, Bits* y) {
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    const __m512 g = load16(gate + i, mask);
    store16(y + i, mask, _mm512_mul_ps(_mm512_mul_ps(g, sigmoid(g)), load16(up + i, mask)));
  });
}

NLAC_AVX512 void gated_silu_backward_row(const Bits* grad, const Bits* gate, const Bits* up, int64_t n,
                                         Bits* grad_gate, Bits* grad_up) {
  const __m512 one = _mm512_set1_ps(1.0f);
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    const __m512 g = load16(gate + i, mask), upstream = load16(grad + i, mask), s = sigmoid(g);
    const __m512 slope = _mm512_mul_ps(s, _mm512_fmadd_ps(g, _mm512_sub_ps(one, s), one));
    store16(grad_up + i, mask, _mm512_mul_ps(upstream, _mm512_mul_ps(g, s)));
    store16(grad_gate + i, mask, _mm512_mul_ps(_mm512_mul_ps(upstream, load16(up + i, mask)), slope));
  });
}

NLAC_AVX512 void rotate_row(Bits* x, int64_t heads, int64_t half, const float* cos, const float* sin,
                            float sign) {
  for (int64_t i = 0; i < half; i += 16) {
    const __m512 c = _mm512_loadu_ps(cos + i);
    const __m512 s = _mm512_mul_ps(_mm512_loadu_ps(sin + i), _mm512_set1_ps(sign));
    for (int64_t h = 0; h < heads; ++h) {
      Bits* low = x + h * 2 * half + i;
      Bits* high = low + half;
      const __m512 a = load16(low), b = load16(high);
      store16(low, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
      store16(high, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
  }
}

template <typename In>
void rms_norm_any(const In* x, int64_t rows, int64_t n, const Bits* weight, bool plus_one, float eps,
                  Bits* y) {
  at::parallel_for(0, rows, rows_at_once(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) rms_norm_row(x + r * n, n, weight, plus_one, eps, y + r * n);
  });
}

}  // namespace

void rms_norm(const Bits* x, int64_t rows, int64_t n, const Bits* weight, bool plus_one, float eps, Bits* y) {
  rms_norm_any(x, rows, n, weight, plus_one, eps, y);
}
void rms_norm(const float* x, int64_t rows, int64_t n, const Bits* weight, bool plus_one, float eps,
              Bits* y) {
  rms_norm_any(x, rows, n, weight, plus_one, eps, y);
}

void rms_norm_backward(const Bits* grad, const Bits* x, const Bits* residual, int64_t rows, int64_t n,
                       const Bits* weight, bool plus_one, float eps, Bits* grad_x, float* grad_weight) {
  constexpr int64_t block = 64;  // rows whose weight gradients are summed together
  const int64_t blocks = (rows + block - 1) / block;
  std::vector<float> partial(grad_weight ? blocks * n : 0);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t r = b * block; r < std::min(rows, (b + 1) * block); ++r)
        rms_norm_backward_row(grad + r * n, x + r * n, residual ? residual + r * n : nullptr, n, weight,
                              plus_one, eps, grad_x + r * n, grad_weight ? partial.data() + b * n : nullptr);
  });
  if (!grad_weight) return;
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < n; ++i) grad_weight[i] += partial[b * n + i];
}

void gated_silu(const Bits* gate_up, int64_t rows, int64_t n, Bits* y) {
  at::parallel_for(0, rows, rows_at_once(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      gated_silu_row(gate_up + 2 * r * n, gate_up + (2 * r + 1) * n, n, y + r * n);
  });
}

void gated_silu_backward(const Bits* grad, const Bits* gate_up, int64_t rows, int64_t n, Bits* grad_gate_up) {
  at::parallel_for(0, rows, rows_at_once(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      gated_silu_backward_row(grad + r * n, gate_up + 2 * r * n, gate_up + (2 * r + 1) * n, n,
                              grad_gate_up + 2 * r * n, grad_gate_up + (2 * r + 1) * n);
  });
}

void rotate(Bits* x, int64_t tokens, int64_t stride, int64_t heads, int64_t half, const float* cos,
            const float* sin, const int64_t* positions, float sign) {
  at::parallel_for(0, tokens, rows_at_once(2 * heads * half), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      rotate_row(x + t * stride, heads, half, cos + positions[t] * half, sin + positions[t] * half, sign);
  });
}

}  // namespace nlac::bf16

#endif
