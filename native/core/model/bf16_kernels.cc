#include "core/model/bf16_kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // in GCC 12's own unmasked intrinsics (its bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif

namespace nlac::bf16 {

#if defined(__x86_64__)

bool available() {
  static const bool yes = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bf16");
  return yes;
}

#define NLAC_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define NLAC_AVX512_INLINE NLAC_AVX512 __attribute__((always_inline)) inline

namespace {

// --- vectors -------------------------------------------------------------------------------------------

NLAC_AVX512_INLINE __m512bh load32(const Bits* p) { return (__m512bh)_mm512_loadu_si512(p); }
NLAC_AVX512_INLINE __m512bh load32(const Bits* p, __mmask32 mask) {
  return (__m512bh)_mm512_maskz_loadu_epi16(mask, p);
}
NLAC_AVX512_INLINE __m512 widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
NLAC_AVX512_INLINE __m512 load16(const Bits* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
NLAC_AVX512_INLINE void store16(Bits* p, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(values));
}

// Lane j of the result is the sum of all lanes of v[j].
NLAC_AVX512_INLINE __m512 sums_of_16(const __m512* v) {
  __m512 quads[4];
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(v[4 * i], v[4 * i + 1]),
                                    _mm512_unpackhi_ps(v[4 * i], v[4 * i + 1]));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(v[4 * i + 2], v[4 * i + 3]),
                                    _mm512_unpackhi_ps(v[4 * i + 2], v[4 * i + 3]));
    quads[i] = _mm512_add_ps(
        _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
        _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
  }
  __m512 halves[2];
#pragma GCC unroll 16
  for (int i = 0; i < 2; ++i)
    halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0x88),
                              _mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                       _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

// e^x to two ulps; 0 and infinity where float32 ends, NaN for NaN (which max and min pass on when it comes second).
NLAC_AVX512_INLINE __m512 exponential(__m512 x) {
  x = _mm512_min_ps(_mm512_set1_ps(104.0f), _mm512_max_ps(_mm512_set1_ps(-104.0f), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);  // ln 2 in two parts
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  return _mm512_scalef_ps(p, n);
}

// --- few rows times a weight matrix ----------------------------------------------------------------------

constexpr int64_t linear_block_rows = 16;

// 16 dot products: `M` rows of x with `N` rows of the weights, M * N = 16; result m * N + n.
template <int M, int N>
NLAC_AVX512_INLINE __m512 dot_tile(const Bits* x, const Bits* const* w, int64_t in) {
  __m512 sum[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) sum[i] = _mm512_setzero_ps();
  const auto step = [&](int64_t k, __mmask32 mask) NLAC_AVX512 __attribute__((always_inline)) {
    __m512bh rows[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) rows[m] = load32(x + m * in + k, mask);
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const __m512bh column = load32(w[n] + k, mask);
      // Few streams at a time do not keep the memory busy; what the next block needs is fetched meanwhile.
      _mm_prefetch(reinterpret_cast<const char*>(w[n] + k + linear_block_rows * in), _MM_HINT_T1);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) sum[m * N + n] = _mm512_dpbf16_ps(sum[m * N + n], rows[m], column);
    }
  };
  int64_t k = 0;
  for (; k + 32 <= in; k += 32) step(k, ~__mmask32{0});
  if (k < in) step(k, (__mmask32{1} << (in - k)) - 1);
  return sums_of_16(sum);
}

NLAC_AVX512_INLINE void store(float* y, const float* values, const Bits*, int64_t count) {
  std::memcpy(y, values, count * sizeof(float));
}
NLAC_AVX512_INLINE void store(Bits* y, const float*, const Bits* rounded, int64_t count) {
  std::memcpy(y, rounded, count * sizeof(Bits));
}

// `M` rows of x with the weights' rows [first, last), a block of at most 16.
template <int M, typename Out>
NLAC_AVX512 void linear_block(const Bits* x, const Bits* weight, const Bits* bias, int64_t first, int64_t last,
                              int64_t out, int64_t in, Out* y) {
  constexpr int N = 16 / M;
  for (int64_t row = first; row < last; row += N) {
    const int64_t count = std::min<int64_t>(N, last - row);
    const Bits* w[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) w[n] = weight + (row + std::min<int64_t>(n, count - 1)) * in;
    __m512 values = dot_tile<M, N>(x, w, in);
    if (bias) {
      Bits repeated[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) repeated[i] = bias[row + std::min<int64_t>(i % N, count - 1)];
      values = _mm512_add_ps(values, load16(repeated));
    }
    float exact[16];
    Bits rounded[16];
    _mm512_storeu_ps(exact, values);
    store16(rounded, values);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) store(y + m * out + row, exact + m * N, rounded + m * N, count);
  }
}

template <typename Out>
void linear_any(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in, Out* y) {
  constexpr int64_t block = linear_block_rows;
  at::parallel_for(0, (out + block - 1) / block, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * block, last = std::min(out, first + block);
      int64_t m = 0;  // the block's weights stay in the first cache while the rows go by
      const auto take = [&]<int M>() {
        for (; rows - m >= M; m += M) linear_block<M>(x + m * in, weight, bias, first, last, out, in, y + m * out);
      };
      take.template operator()<8>();
      take.template operator()<4>();
      take.template operator()<2>();
      take.template operator()<1>();
    }
  });
}

// --- weight gradients ------------------------------------------------------------------------------------

// The dot product instruction multiplies pairs along the rows, so both factors are packed with two rows
// interleaved: a in panels of 8 columns, b in panels of 48, padded with zeros.
constexpr int64_t tall = 8, wide = 48, depth = 512;

// Packs rows [begin, end) of columns [first, first + width) into [pairs][width] pairs.
template <int64_t width>
NLAC_AVX512 void pack(const Bits* source, int64_t columns, int64_t begin, int64_t end, int64_t first,
                      uint32_t* packed) {
  for (int64_t row = begin; row < end; row += 2, packed += width) {
    for (int64_t c = 0; c < width; c += 16) {
      const int64_t count = std::clamp<int64_t>(std::min(width, columns - first) - c, 0, 16);
      const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << count) - 1);
      const Bits* p = source + row * columns + first + c;
      const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
      const __m512i odd = row + 1 < end ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p + columns))
                                        : _mm512_setzero_si512();
      const __mmask16 kept = static_cast<__mmask16>((uint32_t{1} << std::min<int64_t>(width - c, 16)) - 1);
      _mm512_mask_storeu_epi32(packed + c, kept, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
  }
}

// sum[0..count_m)[0..count_n) += a panelᵀ · b panel
NLAC_AVX512 void product_tile(const uint32_t* a, const uint32_t* b, int64_t pairs, float* sum, int64_t stride,
                              int64_t count_m, int64_t count_n) {
  __m512 tile[tall][3];
  for (auto& row : tile)
    for (__m512& value : row) value = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < pairs; ++pair, a += tall, b += wide) {
    const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 16),
                   b2 = (__m512bh)_mm512_loadu_si512(b + 32);
#pragma GCC unroll 16
    for (int m = 0; m < tall; ++m) {
      const __m512bh value = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[m]));
      tile[m][0] = _mm512_dpbf16_ps(tile[m][0], value, b0);
      tile[m][1] = _mm512_dpbf16_ps(tile[m][1], value, b1);
      tile[m][2] = _mm512_dpbf16_ps(tile[m][2], value, b2);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < tall; ++m) {
    if (m >= count_m) break;
#pragma GCC unroll 16
    for (int c = 0; c < 3; ++c) {
      const int64_t count = std::clamp<int64_t>(count_n - 16 * c, 0, 16);
      const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << count) - 1);
      float* p = sum + m * stride + 16 * c;
      _mm512_mask_storeu_ps(p, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, p), tile[m][c]));
    }
  }
}

// --- attention -------------------------------------------------------------------------------------------

// scores[0..16) of one query with 16 keys (the last one repeated where fewer are left)
NLAC_AVX512_INLINE __m512 scores_of_16(const Bits* query, const Bits* keys, int64_t left, int64_t head_dim) {
  __m512 sum[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) {
    const Bits* key = keys + std::min<int64_t>(j, left - 1) * head_dim;
    sum[j] = _mm512_setzero_ps();
    for (int64_t d = 0; d < head_dim; d += 32) sum[j] = _mm512_dpbf16_ps(sum[j], load32(query + d), load32(key + d));
  }
  return sums_of_16(sum);
}

// Softmax in place over `length` scores, padded to a multiple of 16 by anything; padding becomes 0. Returns
// the factor that makes the entries sum to one.
NLAC_AVX512_INLINE float exponentials(float* scores, int64_t length, float scale) {
  const int64_t whole = length / 16 * 16;
  const __mmask16 tail = static_cast<__mmask16>((uint32_t{1} << (length - whole)) - 1);
  __m512 largest = _mm512_set1_ps(-INFINITY);
  for (int64_t j = 0; j < whole; j += 16) largest = _mm512_max_ps(largest, _mm512_loadu_ps(scores + j));
  if (tail) largest = _mm512_mask_max_ps(largest, tail, largest, _mm512_loadu_ps(scores + whole));
  const __m512 offset = _mm512_set1_ps(_mm512_reduce_max_ps(largest) * scale), factor = _mm512_set1_ps(scale);
  __m512 total = _mm512_setzero_ps();
  for (int64_t j = 0; j < length; j += 16) {
    __m512 e = exponential(_mm512_fmsub_ps(_mm512_loadu_ps(scores + j), factor, offset));
    if (j == whole) e = _mm512_maskz_mov_ps(tail, e);
    _mm512_storeu_ps(scores + j, e);
    total = _mm512_add_ps(total, e);
  }
  return 1.0f / _mm512_reduce_add_ps(total);
}

// Values weighted by `G` rows of probabilities at once, so that each value is read and widened once for them.
template <int G>
NLAC_AVX512 void weigh_values(const float* weights, int64_t stride, const float* factors, const Bits* values,
                              int64_t length, int64_t head_dim, Bits* output) {
  for (int64_t d = 0; d < head_dim; d += 64) {
    __m512 sum[G][4];
    for (auto& row : sum)
      for (__m512& value : row) value = _mm512_setzero_ps();
    for (int64_t j = 0; j < length; ++j) {
      __m512 value[4];
#pragma GCC unroll 16
      for (int c = 0; c < 4; ++c) value[c] = load16(values + j * head_dim + d + 16 * c);
#pragma GCC unroll 16
      for (int g = 0; g < G; ++g) {
        const __m512 weight = _mm512_set1_ps(weights[g * stride + j]);
#pragma GCC unroll 16
        for (int c = 0; c < 4; ++c) sum[g][c] = _mm512_fmadd_ps(weight, value[c], sum[g][c]);
      }
    }
#pragma GCC unroll 16
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 16
      for (int c = 0; c < 4; ++c)
        store16(output + g * head_dim + d + 16 * c, _mm512_mul_ps(sum[g][c], _mm512_set1_ps(factors[g])));
  }
}

NLAC_AVX512 void score(const Bits* queries, int64_t group, const Bits* keys, int64_t length, int64_t head_dim,
                       float* scores, int64_t stride) {
  for (int64_t j = 0; j < length; j += 16)
    for (int64_t g = 0; g < group; ++g)
      _mm512_storeu_ps(scores + g * stride + j,
                       scores_of_16(queries + g * head_dim, keys + j * head_dim, length - j, head_dim));
}

NLAC_AVX512 float normalise(float* scores, int64_t length, float scale) { return exponentials(scores, length, scale); }

// --- between the products --------------------------------------------------------------------------------

// Calls f(i, mask) for i = 0, 16, … < n, the mask short at the end.
template <typename F>
NLAC_AVX512_INLINE void by_16(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, static_cast<__mmask16>(0xffff));
  if (i < n) f(i, static_cast<__mmask16>((1u << (n - i)) - 1));
}
NLAC_AVX512_INLINE __m512 load16(const Bits* p, __mmask16 mask) { return widen(_mm256_maskz_loadu_epi16(mask, p)); }
NLAC_AVX512_INLINE void store16(Bits* p, __mmask16 mask, __m512 values) {
  _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(values));
}
NLAC_AVX512_INLINE __m512 rounded(__m512 values) { return widen((__m256i)_mm512_cvtneps_pbh(values)); }

// Rows a thread takes at least, so that few rows are not shared out at the price of waking the others.
int64_t rows_at_once(int64_t n) { return std::max<int64_t>(1, 16384 / n); }

NLAC_AVX512 float inverse_rms(const Bits* x, int64_t n, float eps) {
  __m512 sum = _mm512_setzero_ps();
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    const __m512 value = load16(x + i, mask);
    sum = _mm512_fmadd_ps(value, value, sum);
  });
  return 1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / static_cast<float>(n) + eps);
}

NLAC_AVX512 void rms_norm_row(const Bits* x, int64_t n, const Bits* weight, float eps, Bits* y) {
  const __m512 scale = _mm512_set1_ps(inverse_rms(x, n, eps));
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    store16(y + i, mask, _mm512_mul_ps(rounded(_mm512_mul_ps(load16(x + i, mask), scale)), load16(weight + i, mask)));
  });
}

NLAC_AVX512 void rms_norm_backward_row(const Bits* grad, const Bits* x, const Bits* residual, int64_t n,
                                       const Bits* weight, float eps, Bits* grad_x, float* grad_weight) {
  const float factor = inverse_rms(x, n, eps);
  const __m512 scale = _mm512_set1_ps(factor);
  __m512 dot = _mm512_setzero_ps();
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    const __m512 upstream = load16(grad + i, mask), normalised = _mm512_mul_ps(load16(x + i, mask), scale);
    dot = _mm512_fmadd_ps(_mm512_mul_ps(upstream, load16(weight + i, mask)), normalised, dot);
    if (grad_weight)
      _mm512_mask_storeu_ps(grad_weight + i, mask,
                            _mm512_fmadd_ps(upstream, normalised, _mm512_maskz_loadu_ps(mask, grad_weight + i)));
  });
  const __m512 along = _mm512_set1_ps(_mm512_reduce_add_ps(dot) / static_cast<float>(n));
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    const __m512 normalised = _mm512_mul_ps(load16(x + i, mask), scale);
    const __m512 direct = _mm512_mul_ps(load16(grad + i, mask), load16(weight + i, mask));
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

NLAC_AVX512 void rotate_row(Bits* x, int64_t heads, int64_t half, const float* cos, const float* sin, float sign) {
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

}  // namespace

void rms_norm(const Bits* x, int64_t rows, int64_t n, const Bits* weight, float eps, Bits* y) {
  at::parallel_for(0, rows, rows_at_once(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) rms_norm_row(x + r * n, n, weight, eps, y + r * n);
  });
}

void rms_norm_backward(const Bits* grad, const Bits* x, const Bits* residual, int64_t rows, int64_t n,
                       const Bits* weight, float eps, Bits* grad_x, float* grad_weight) {
  constexpr int64_t block = 64;  // rows whose weight gradients are summed together, whoever computes them
  const int64_t blocks = (rows + block - 1) / block;
  std::vector<float> partial(grad_weight ? blocks * n : 0);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t r = b * block; r < std::min(rows, (b + 1) * block); ++r)
        rms_norm_backward_row(grad + r * n, x + r * n, residual ? residual + r * n : nullptr, n, weight, eps,
                              grad_x + r * n, grad_weight ? partial.data() + b * n : nullptr);
  });
  if (!grad_weight) return;
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < n; ++i) grad_weight[i] += partial[b * n + i];
}

void gated_silu(const Bits* gate_up, int64_t rows, int64_t n, Bits* y) {
  at::parallel_for(0, rows, rows_at_once(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) gated_silu_row(gate_up + 2 * r * n, gate_up + (2 * r + 1) * n, n, y + r * n);
  });
}

void gated_silu_backward(const Bits* grad, const Bits* gate_up, int64_t rows, int64_t n, Bits* grad_gate_up) {
  at::parallel_for(0, rows, rows_at_once(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      gated_silu_backward_row(grad + r * n, gate_up + 2 * r * n, gate_up + (2 * r + 1) * n, n,
                              grad_gate_up + 2 * r * n, grad_gate_up + (2 * r + 1) * n);
  });
}

void rotate(Bits* x, int64_t tokens, int64_t stride, int64_t heads, int64_t half, const float* cos, const float* sin,
            const int64_t* positions, float sign) {
  at::parallel_for(0, tokens, rows_at_once(2 * heads * half), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      rotate_row(x + t * stride, heads, half, cos + positions[t] * half, sin + positions[t] * half, sign);
  });
}

void linear(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in, Bits* y) {
  linear_any(x, rows, weight, bias, out, in, y);
}
void linear(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in, float* y) {
  linear_any(x, rows, weight, bias, out, in, y);
}

void add_transposed_product(const Bits* a, const Bits* b, int64_t rows, int64_t m, int64_t n, float* sum) {
  const int64_t m_panels = (m + tall - 1) / tall, n_panels = (n + wide - 1) / wide;
  std::vector<uint32_t> packed_a(m_panels * tall * (depth / 2)), packed_b(n_panels * wide * (depth / 2));
  for (int64_t begin = 0; begin < rows; begin += depth) {
    const int64_t end = std::min(rows, begin + depth), pairs = (end - begin + 1) / 2;
    at::parallel_for(0, m_panels, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) pack<tall>(a, m, begin, end, p * tall, packed_a.data() + p * pairs * tall);
    });
    at::parallel_for(0, n_panels, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) pack<wide>(b, n, begin, end, p * wide, packed_b.data() + p * pairs * wide);
    });
    at::parallel_for(0, m_panels, 1, [&](int64_t first, int64_t last) {
      for (int64_t q = 0; q < n_panels; ++q)
        for (int64_t p = first; p < last; ++p)
          product_tile(packed_a.data() + p * pairs * tall, packed_b.data() + q * pairs * wide, pairs,
                       sum + p * tall * n + q * wide, n, std::min(tall, m - p * tall), std::min(wide, n - q * wide));
    });
  }
}

void attend_one(const Bits* queries, int64_t group, const Bits* keys, const Bits* values, int64_t length,
                int64_t head_dim, float* scratch, Bits* output) {
  const int64_t stride = (length + 15) / 16 * 16;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  score(queries, group, keys, length, head_dim, scratch, stride);
  int64_t g = 0;
  const auto take = [&]<int G>() {
    for (; group - g >= G; g += G) {
      float factors[G];
#pragma GCC unroll 16
      for (int i = 0; i < G; ++i) factors[i] = normalise(scratch + (g + i) * stride, length, scale);
      weigh_values<G>(scratch + g * stride, stride, factors, values, length, head_dim, output + g * head_dim);
    }
  };
  take.template operator()<4>();
  take.template operator()<3>();
  take.template operator()<2>();
  take.template operator()<1>();
}

#else

bool available() { return false; }
void linear(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, Bits*) {}
void linear(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, float*) {}
void add_transposed_product(const Bits*, const Bits*, int64_t, int64_t, int64_t, float*) {}
void attend_one(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, float*, Bits*) {}
void rms_norm(const Bits*, int64_t, int64_t, const Bits*, float, Bits*) {}
void rms_norm_backward(const Bits*, const Bits*, const Bits*, int64_t, int64_t, const Bits*, float, Bits*, float*) {}
void gated_silu(const Bits*, int64_t, int64_t, Bits*) {}
void gated_silu_backward(const Bits*, const Bits*, int64_t, int64_t, Bits*) {}
void rotate(Bits*, int64_t, int64_t, int64_t, int64_t, const float*, const float*, const int64_t*, float) {}

#endif

}  // namespace nlac::bf16
