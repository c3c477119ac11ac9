#include "core/cpu/bf16_kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/instruction_set.h"

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
  static const bool yes = runs(InstructionSet::avx512_bf16);
  return yes;
}

#define NLAC_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define NLAC_AVX512_INLINE NLAC_AVX512 __attribute__((always_inline)) inline

namespace {

// Uninitialised memory for intermediate results.
template <typename T>
std::unique_ptr<T[]> scratch(int64_t count) {
  return std::unique_ptr<T[]>(new T[count]);
}

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
    const __m512 ab =
        _mm512_add_ps(_mm512_unpacklo_ps(v[4 * i], v[4 * i + 1]), _mm512_unpackhi_ps(v[4 * i], v[4 * i + 1]));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(v[4 * i + 2], v[4 * i + 3]),
                                    _mm512_unpackhi_ps(v[4 * i + 2], v[4 * i + 3]));
    quads[i] =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
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

// e^x to two ulps; 0 and infinity where float32 ends. NaN for NaN: max and min pass on their second operand.
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
NLAC_AVX512 void linear_block(const Bits* x, const Bits* weight, const Bits* bias, int64_t first,
                              int64_t last, int64_t out, int64_t in, Out* y) {
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
void linear_any(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in,
                Out* y) {
  constexpr int64_t block = linear_block_rows;
  at::parallel_for(0, (out + block - 1) / block, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * block, last = std::min(out, first + block);
      int64_t m = 0;  // the block's weights stay in the first cache while the rows go by
      const auto take = [&]<int M>() {
        for (; rows - m >= M; m += M)
          linear_block<M>(x + m * in, weight, bias, first, last, out, in, y + m * out);
      };
      take.template operator()<8>();
      take.template operator()<4>();
      take.template operator()<2>();
      take.template operator()<1>();
    }
  });
}

// --- products of packed factors --------------------------------------------------------------------------

// The dot product instruction multiplies pairs along the inner dimension. The right factor is packed so that
// a vector holds one pair each of 16 columns: panels of 64 columns, [panels][pairs][64] pairs, padded with
// zeros. The left factor's pairs are broadcast, 6 rows at a time, wherever they lie.
using Pair = uint32_t __attribute__((may_alias));
constexpr int64_t tall = 6, wide = 64;

int64_t panels(int64_t columns, int64_t width) { return (columns + width - 1) / width; }

struct Left {
  const Pair* pairs;
  int64_t panel_step, row_step,
      pair_step;  // in pairs: from 6 rows to the next 6, from row to row, along a row
};
Left rows_of(const Bits* x, int64_t stride) {
  return {reinterpret_cast<const Pair*>(x), tall * stride / 2, stride / 2, 1};
}

// sum[0, count_m)[0, count_n) = or += the product of 6 rows and one panel
NLAC_AVX512 void product_tile(const Pair* a, int64_t row_step, int64_t pair_step, const Pair* b,
                              int64_t pairs, float* sum, int64_t stride, int64_t count_m, int64_t count_n,
                              bool add) {
  const Pair* rows[tall];
  __m512 tile[tall][4];
#pragma GCC unroll 16
  for (int m = 0; m < tall; ++m) {
    rows[m] = a + std::min<int64_t>(m, count_m - 1) * row_step;
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) tile[m][c] = _mm512_setzero_ps();
  }
  for (int64_t at = 0; at < pairs * pair_step; at += pair_step, b += wide) {
    __m512bh column[4];
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) column[c] = (__m512bh)_mm512_loadu_si512(b + 16 * c);
#pragma GCC unroll 16
    for (int m = 0; m < tall; ++m) {
      const __m512bh value = (__m512bh)_mm512_set1_epi32(static_cast<int>(rows[m][at]));
#pragma GCC unroll 16
      for (int c = 0; c < 4; ++c) tile[m][c] = _mm512_dpbf16_ps(tile[m][c], value, column[c]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < tall; ++m) {
    if (m >= count_m) break;
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) {
      const int64_t count = std::clamp<int64_t>(count_n - 16 * c, 0, 16);
      const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << count) - 1);
      float* p = sum + m * stride + 16 * c;
      const __m512 before = add ? _mm512_maskz_loadu_ps(mask, p) : _mm512_setzero_ps();
      _mm512_mask_storeu_ps(p, mask, _mm512_add_ps(before, tile[m][c]));
    }
  }
}

// sum [m, n] (rows `stride` apart) = or += left [m, 2 pairs] · right [2 pairs, n], whose panels are
// `panel_step` pairs apart
void product(const Left& left, const Pair* right, int64_t panel_step, int64_t pairs, int64_t m, int64_t n,
             float* sum, int64_t stride, bool add) {
  for (int64_t q = 0; q < panels(n, wide); ++q)
    for (int64_t p = 0; p < panels(m, tall); ++p)
      product_tile(left.pairs + p * left.panel_step, left.row_step, left.pair_step, right + q * panel_step,
                   pairs, sum + p * tall * stride + q * wide, stride, std::min(tall, m - p * tall),
                   std::min(wide, n - q * wide), add);
}

// Packs one panel, columns [first, first + width) of `rows` rows of `source`, pairing row 2i with row 2i + 1.
template <int64_t width>
NLAC_AVX512 void pack_row_pairs(const Bits* source, int64_t stride, int64_t rows, int64_t columns,
                                int64_t first, Pair* packed) {
  for (int64_t row = 0; row < rows; row += 2, packed += width) {
    for (int64_t c = 0; c < width; c += 16) {
      const int64_t count = std::clamp<int64_t>(std::min(width, columns - first) - c, 0, 16);
      const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << count) - 1);
      const Bits* p = source + row * stride + first + c;
      const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
      const __m512i odd = row + 1 < rows ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p + stride))
                                         : _mm512_setzero_si512();
      const __mmask16 kept = static_cast<__mmask16>((uint32_t{1} << std::min<int64_t>(width - c, 16)) - 1);
      _mm512_mask_storeu_epi32(packed + c, kept, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
  }
}

// Packs the transpose of `source` [rows, 2 pairs]: its rows become the columns, pairs are those along a row.
NLAC_AVX512 void pack_transposed(const Bits* source, int64_t stride, int64_t rows, int64_t pairs,
                                 Pair* packed) {
  const __m512i lanes =
      _mm512_mullo_epi32(_mm512_set1_epi32(static_cast<int>(stride / 2)),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  for (int64_t row = 0; row < panels(rows, wide) * wide; row += 16) {
    const int64_t count = std::clamp<int64_t>(rows - row, 0, 16);
    const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << count) - 1);
    Pair* into = packed + row / wide * pairs * wide + row % wide;
    for (int64_t pair = 0; pair < pairs; ++pair, into += wide)
      _mm512_storeu_si512(into, _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, lanes,
                                                            source + row * stride + 2 * pair, 4));
  }
}

// --- attention -------------------------------------------------------------------------------------------

// One row of exponentials e^(scale · score - offset) of the first `length` scores, as bf16, 0 up to `padded`.
// Returns their sum (before rounding). Both counts are read in steps of 16.
NLAC_AVX512 float exponentials_to(const float* scores, int64_t length, int64_t padded, float scale,
                                  float offset, Bits* into) {
  __m512 total = _mm512_setzero_ps();
  for (int64_t j = 0; j < padded; j += 16) {
    const int64_t count = std::clamp<int64_t>(length - j, 0, 16);
    const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << count) - 1);
    const __m512 shifted =
        _mm512_fmsub_ps(_mm512_loadu_ps(scores + j), _mm512_set1_ps(scale), _mm512_set1_ps(offset));
    const __m512 value = _mm512_maskz_mov_ps(mask, exponential(shifted));
    total = _mm512_add_ps(total, value);
    store16(into + j, value);
  }
  return _mm512_reduce_add_ps(total);
}

NLAC_AVX512 float largest_of(const float* values, int64_t length) {
  __m512 largest = _mm512_set1_ps(-INFINITY);
  for (int64_t j = 0; j < length; j += 16) {
    const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << std::min<int64_t>(length - j, 16)) - 1);
    largest = _mm512_mask_max_ps(largest, mask, largest, _mm512_maskz_loadu_ps(mask, values + j));
  }
  return _mm512_reduce_max_ps(largest);
}

// values [n] · factor → bf16; n is a multiple of 16
NLAC_AVX512 void round_scaled(const float* values, int64_t n, float factor, Bits* into) {
  for (int64_t i = 0; i < n; i += 16)
    store16(into + i, _mm512_mul_ps(_mm512_loadu_ps(values + i), _mm512_set1_ps(factor)));
}

NLAC_AVX512 float dot(const Bits* a, const Bits* b, int64_t n) {  // n is a multiple of 32
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 32) sum = _mm512_dpbf16_ps(sum, load32(a + i), load32(b + i));
  return _mm512_reduce_add_ps(sum);
}

// at_scores = probabilities · (at_probabilities - along) · scale, bf16; `count` is a multiple of 16
NLAC_AVX512 void softmax_backward(const Bits* probabilities, const float* at_probabilities, int64_t count,
                                  float along, float scale, Bits* at_scores) {
  for (int64_t j = 0; j < count; j += 16) {
    const __m512 off = _mm512_sub_ps(_mm512_loadu_ps(at_probabilities + j), _mm512_set1_ps(along));
    store16(at_scores + j,
            _mm512_mul_ps(_mm512_mul_ps(off, _mm512_set1_ps(scale)), load16(probabilities + j)));
  }
}

constexpr int64_t query_block = 48;  // queries whose scores are held at a time

// --- between the products --------------------------------------------------------------------------------

// Calls f(i, mask) for i = 0, 16, … < n, the mask short at the end.
template <typename F>
NLAC_AVX512_INLINE void by_16(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, static_cast<__mmask16>(0xffff));
  if (i < n) f(i, static_cast<__mmask16>((1u << (n - i)) - 1));
}
NLAC_AVX512_INLINE __m512 load16(const Bits* p, __mmask16 mask) {
  return widen(_mm256_maskz_loadu_epi16(mask, p));
}
NLAC_AVX512_INLINE __m512 load16(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
NLAC_AVX512_INLINE void store16(Bits* p, __mmask16 mask, __m512 values) {
  _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(values));
}
NLAC_AVX512_INLINE __m512 rounded(__m512 values) { return widen((__m256i)_mm512_cvtneps_pbh(values)); }

// Rows a thread takes at least, so that few rows are not shared out at the price of waking the others.
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
NLAC_AVX512 void rms_norm_row(const In* x, int64_t n, const Bits* weight, float eps, Bits* y) {
  const __m512 scale = _mm512_set1_ps(inverse_rms(x, n, eps));
  by_16(n, [&](int64_t i, __mmask16 mask) NLAC_AVX512 __attribute__((always_inline)) {
    store16(y + i, mask,
            _mm512_mul_ps(rounded(_mm512_mul_ps(load16(x + i, mask), scale)), load16(weight + i, mask)));
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
      _mm512_mask_storeu_ps(
          grad_weight + i, mask,
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
void rms_norm_any(const In* x, int64_t rows, int64_t n, const Bits* weight, float eps, Bits* y) {
  at::parallel_for(0, rows, rows_at_once(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) rms_norm_row(x + r * n, n, weight, eps, y + r * n);
  });
}

// --- attention over blocks -------------------------------------------------------------------------------

// Calls f<M>(row) for all rows, `tall` at a time and the rest by fewer.
template <typename F>
void in_tiles(int64_t rows, const F& f) {
  int64_t row = 0;
  for (; rows - row >= tall; row += tall) f.template operator()<tall>(row);
  switch (rows - row) {
    case 5: return f.template operator()<5>(row);
    case 4: return f.template operator()<4>(row);
    case 3: return f.template operator()<3>(row);
    case 2: return f.template operator()<2>(row);
    case 1: return f.template operator()<1>(row);
  }
}

const Pair* pairs_at(const void* block, int64_t part) {
  return reinterpret_cast<const Pair*>(static_cast<const Bits*>(block) + part);
}

// scores[m][0, 64): of M queries with the keys of four blocks; of the last one over again where `count` are fewer.
template <int M>
NLAC_AVX512 void score_tile(const Pair* const* queries, const void* const* blocks, int64_t keys,
                            int64_t count, int64_t pairs, float* scores, int64_t stride) {
  const Pair* block[4];
  __m512 tile[M][4];
#pragma GCC unroll 16
  for (int c = 0; c < 4; ++c) {
    block[c] = pairs_at(blocks[std::min<int64_t>(c, count - 1)], keys);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) tile[m][c] = _mm512_setzero_ps();
  }
  for (int64_t p = 0; p < pairs; ++p) {
    __m512bh key[4];
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) key[c] = (__m512bh)_mm512_loadu_si512(block[c] + p * kBlockTokens);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512bh query = (__m512bh)_mm512_set1_epi32(static_cast<int>(queries[m][p]));
#pragma GCC unroll 16
      for (int c = 0; c < 4; ++c) tile[m][c] = _mm512_dpbf16_ps(tile[m][c], query, key[c]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) _mm512_storeu_ps(scores + m * stride + 16 * c, tile[m][c]);
}

// into[m][0, 64) = factors[m] · Σ weights · values, of the first `seen` tokens and 64 columns.
template <int M>
NLAC_AVX512 void weigh_tile(const Pair* const* weights, const void* const* blocks, int64_t values,
                            int64_t seen, int64_t head_dim, const float* factors, Bits* const* into) {
  __m512 tile[M][4];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) tile[m][c] = _mm512_setzero_ps();
  const int64_t pairs = (seen + 1) / 2;
  for (int64_t begin = 0; begin < pairs; begin += kBlockTokens / 2) {
    const Pair* block = pairs_at(blocks[begin / (kBlockTokens / 2)], values);
    const int64_t end = std::min(pairs, begin + kBlockTokens / 2);
    for (int64_t p = begin; p < end; ++p, block += head_dim) {
      __m512bh value[4];
#pragma GCC unroll 16
      for (int c = 0; c < 4; ++c) value[c] = (__m512bh)_mm512_loadu_si512(block + 16 * c);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const __m512bh weight = (__m512bh)_mm512_set1_epi32(static_cast<int>(weights[m][p]));
#pragma GCC unroll 16
        for (int c = 0; c < 4; ++c) tile[m][c] = _mm512_dpbf16_ps(tile[m][c], weight, value[c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c)
      store16(into[m] + 16 * c, _mm512_mul_ps(tile[m][c], _mm512_set1_ps(factors[m])));
}

// --- packed weights --------------------------------------------------------------------------------------

int64_t int8_groups(int64_t in) { return (in + int8_group - 1) / int8_group; }

// A packed matrix, and its i-th panel alike: `in` / 2 pairs of 64 columns, as pack_weights leaves them.
struct Pairs {
  static constexpr int64_t bytes = wide * sizeof(Pair);  // of one pair of all columns
  const Pair* weights;
  Pairs panel(int64_t i, int64_t in) const { return {weights + i * (in / 2) * wide}; }
  const void* at(int64_t pair) const { return weights + pair * wide; }
  // Of columns [16 c, 16 c + 16).
  NLAC_AVX512_INLINE __m512bh columns(int64_t pair, int c) const {
    return (__m512bh)_mm512_loadu_si512(weights + pair * wide + 16 * c);
  }
};

// The same in int8, of 16 columns first the even, then the odd numbers, with scales [groups][64].
struct Int8Pairs {
  static constexpr int64_t bytes = 2 * wide;
  const int8_t* weights;
  const float* scales;
  Int8Pairs panel(int64_t i, int64_t in) const {
    return {weights + i * in * wide, scales + i * int8_groups(in) * wide};
  }
  const void* at(int64_t pair) const { return weights + pair * bytes; }
  // An int8 is exact in bf16, whose bits are the upper half of float32's.
  NLAC_AVX512_INLINE __m512bh columns(int64_t pair, int c) const {
    const int8_t* even = weights + pair * bytes + 32 * c;
    return (__m512bh)_mm512_or_si512(_mm512_srli_epi32(float_bits(even), 16), float_bits(even + 16));
  }
  NLAC_AVX512_INLINE static __m512i float_bits(const int8_t* p) {
    return (__m512i)_mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
};

// tile[m] += the products of M rows, `stride` pairs apart, with one panel's 64 columns, over pairs [first, last).
template <int M, typename Panel>
NLAC_AVX512_INLINE void add_products(const Pair* rows, int64_t stride, Panel panel, int64_t first,
                                     int64_t last, __m512 (&tile)[M][4]) {
  for (int64_t p = first; p < last; ++p) {
    __m512bh column[4];
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) column[c] = panel.columns(p, c);
    // The first rows leave the processor waiting for memory: what comes next is fetched meanwhile.
#pragma GCC unroll 16
    for (int64_t line = 0; line < Panel::bytes; line += 64)
      _mm_prefetch(static_cast<const char*>(panel.at(p + 16)) + line, _MM_HINT_T0);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512bh value = (__m512bh)_mm512_set1_epi32(static_cast<int>(rows[m * stride + p]));
#pragma GCC unroll 16
      for (int c = 0; c < 4; ++c) tile[m][c] = _mm512_dpbf16_ps(tile[m][c], value, column[c]);
    }
  }
}

template <int M>
NLAC_AVX512_INLINE void clear(__m512 (&tile)[M][4]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) tile[m][c] = _mm512_setzero_ps();
}

// sum[m][0, 64) of M rows and one panel.
template <int M>
NLAC_AVX512_INLINE void multiply(const Pair* rows, int64_t pairs, Pairs panel, __m512 (&sum)[M][4]) {
  clear(sum);
  add_products(rows, pairs, panel, 0, pairs, sum);
}
template <int M>
NLAC_AVX512_INLINE void multiply(const Pair* rows, int64_t pairs, Int8Pairs panel, __m512 (&sum)[M][4]) {
  constexpr int64_t group = int8_group / 2;  // pairs
  clear(sum);
  for (int64_t first = 0; first < pairs; first += group, panel.scales += wide) {
    __m512 tile[M][4];
    clear(tile);
    add_products(rows, pairs, panel, first, std::min(pairs, first + group), tile);
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) {
      const __m512 scale = _mm512_loadu_ps(panel.scales + 16 * c);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) sum[m][c] = _mm512_fmadd_ps(tile[m][c], scale, sum[m][c]);
    }
  }
}

// y[m][0, 64) of M rows and one panel, `count` columns of it.
template <int M, typename Panel, typename Out>
NLAC_AVX512 void panel_tile(const Bits* x, Panel panel, const Bits* bias, int64_t in, int64_t count, Out* y,
                            int64_t stride, bool add) {
  __m512 tile[M][4];
  multiply(reinterpret_cast<const Pair*>(x), in / 2, panel, tile);
#pragma GCC unroll 16
  for (int c = 0; c < 4; ++c) {
    const int64_t left = std::clamp<int64_t>(count - 16 * c, 0, 16);
    const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << left) - 1);
    const __m512 offset = bias ? load16(bias + 16 * c, mask) : _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      Out* into = y + m * stride + 16 * c;
      const __m512 value = bias ? _mm512_add_ps(tile[m][c], offset) : tile[m][c];
      if constexpr (sizeof(Out) == sizeof(Bits)) {
        store16(into, mask, value);
      } else {
        _mm512_mask_storeu_ps(into, mask,
                              add ? _mm512_add_ps(_mm512_maskz_loadu_ps(mask, into), value) : value);
      }
    }
  }
}

template <typename Packed, typename Out>
void packed_linear_any(const Bits* x, int64_t rows, Packed packed, const Bits* bias, int64_t out, int64_t in,
                       Out* y, int64_t stride, bool add) {
  constexpr int64_t block = 96;  // rows that stay in the second cache while the panels go by
  at::parallel_for(0, panels(out, wide), 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = 0; first < rows; first += block)
      for (int64_t p = begin; p < end; ++p) {
        const Packed panel = packed.panel(p, in);
        in_tiles(std::min(block, rows - first), [&]<int M>(int64_t row) {
          panel_tile<M>(x + (first + row) * in, panel, bias ? bias + p * wide : nullptr, in,
                        std::min(wide, out - p * wide), y + (first + row) * stride + p * wide, stride, add);
        });
      }
  });
}

// A pair's even and odd numbers of 16 columns, in float32.
NLAC_AVX512_INLINE __m512 even_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
NLAC_AVX512_INLINE __m512 odd_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(~0xffff)));
}

// Rounds 16 columns of a panel of bf16 to one of int8, the `pairs` pairs of a group. Where a weight is not finite the
// scale is NaN; where all are 0 it is 0, and any numbers will do.
NLAC_AVX512 void round_to_int8(const Pair* panel, int64_t pairs, int8_t* packed, float* scales) {
  const __m512 zero = _mm512_setzero_ps();
  __m512 largest = zero, broken = zero;
  for (int64_t p = 0; p < pairs; ++p) {
    const __m512i both = _mm512_loadu_si512(panel + p * wide);
    for (const __m512 value : {even_of(both), odd_of(both)}) {
      largest = _mm512_max_ps(largest, _mm512_abs_ps(value));
      broken = _mm512_fmadd_ps(value, zero, broken);  // 0, or NaN
    }
  }
  const __m512 scale = _mm512_add_ps(_mm512_div_ps(largest, _mm512_set1_ps(127)), broken);
  _mm512_storeu_ps(scales, scale);
  for (int64_t p = 0; p < pairs; ++p) {
    const __m512i both = _mm512_loadu_si512(panel + p * wide);
    int8_t* into = packed + 2 * p * wide;
    for (const __m512 value : {even_of(both), odd_of(both)}) {
      const __m512i nearest = _mm512_cvtps_epi32(_mm512_div_ps(value, scale));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(into), _mm512_cvtsepi32_epi8(nearest));
      into += 16;
    }
  }
}

}  // namespace

int64_t packed_size(int64_t out, int64_t in) { return panels(out, wide) * wide * in; }

void pack_weights(const Bits* weight, int64_t out, int64_t in, Bits* packed) {
  at::parallel_for(0, panels(out, wide), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      pack_transposed(weight + p * wide * in, in, std::min(wide, out - p * wide), in / 2,
                      reinterpret_cast<Pair*>(packed) + p * (in / 2) * wide);
  });
}

void packed_linear(const Bits* x, int64_t rows, const Bits* packed, const Bits* bias, int64_t out, int64_t in,
                   Bits* y) {
  packed_linear_any(x, rows, Pairs{reinterpret_cast<const Pair*>(packed)}, bias, out, in, y, out, false);
}
void packed_linear(const Bits* x, int64_t rows, const Bits* packed, const Bits* bias, int64_t out, int64_t in,
                   float* y, int64_t y_stride, bool add) {
  packed_linear_any(x, rows, Pairs{reinterpret_cast<const Pair*>(packed)}, bias, out, in, y, y_stride, add);
}

int64_t int8_scales(int64_t out, int64_t in) { return panels(out, wide) * wide * int8_groups(in); }

void pack_int8(const Bits* weight, int64_t out, int64_t in, int8_t* packed, float* scales) {
  at::parallel_for(0, panels(out, wide), 1, [&](int64_t begin, int64_t end) {
    const auto panel = scratch<Pair>(in / 2 * wide);
    for (int64_t p = begin; p < end; ++p) {
      pack_transposed(weight + p * wide * in, in, std::min(wide, out - p * wide), in / 2, panel.get());
      for (int64_t g = 0; g < int8_groups(in); ++g) {
        const int64_t first = g * int8_group, numbers = std::min(in - first, int8_group);
        for (int64_t c = 0; c < wide; c += 16)
          round_to_int8(panel.get() + first / 2 * wide + c, numbers / 2,
                        packed + (p * in + first) * wide + 2 * c,
                        scales + (p * int8_groups(in) + g) * wide + c);
      }
    }
  });
}

void packed_linear(const Bits* x, int64_t rows, const int8_t* packed, const float* scales, const Bits* bias,
                   int64_t out, int64_t in, Bits* y) {
  packed_linear_any(x, rows, Int8Pairs{packed, scales}, bias, out, in, y, out, false);
}
void packed_linear(const Bits* x, int64_t rows, const int8_t* packed, const float* scales, const Bits* bias,
                   int64_t out, int64_t in, float* y, int64_t y_stride, bool add) {
  packed_linear_any(x, rows, Int8Pairs{packed, scales}, bias, out, in, y, y_stride, add);
}

void rms_norm(const Bits* x, int64_t rows, int64_t n, const Bits* weight, float eps, Bits* y) {
  rms_norm_any(x, rows, n, weight, eps, y);
}
void rms_norm(const float* x, int64_t rows, int64_t n, const Bits* weight, float eps, Bits* y) {
  rms_norm_any(x, rows, n, weight, eps, y);
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

void linear(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in,
            Bits* y) {
  linear_any(x, rows, weight, bias, out, in, y);
}
void linear(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in,
            float* y) {
  linear_any(x, rows, weight, bias, out, in, y);
}

void add_transposed_product(const Bits* a, const Bits* b, int64_t rows, int64_t m, int64_t n, float* sum) {
  constexpr int64_t depth = 512;  // rows packed at a time: a panel of b then fits the second cache
  const int64_t m_panels = panels(m, tall), n_panels = panels(n, wide);
  const auto packed_a = scratch<Pair>(m_panels * tall * depth / 2),
             packed_b = scratch<Pair>(n_panels * wide * depth / 2);
  for (int64_t begin = 0; begin < rows; begin += depth) {
    const int64_t count = std::min(rows - begin, depth), pairs = (count + 1) / 2;
    at::parallel_for(0, m_panels, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p)
        pack_row_pairs<tall>(a + begin * m, m, count, m, p * tall, packed_a.get() + p * pairs * tall);
    });
    at::parallel_for(0, n_panels, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p)
        pack_row_pairs<wide>(b + begin * n, n, count, n, p * wide, packed_b.get() + p * pairs * wide);
    });
    at::parallel_for(0, m_panels, 1, [&](int64_t first, int64_t last) {
      const Left left{packed_a.get() + first * pairs * tall, pairs * tall, 1, tall};
      product(left, packed_b.get(), pairs * wide, pairs, std::min(last * tall, m) - first * tall, n,
              sum + first * tall * n, n, true);
    });
  }
}

void store_key(const Bits* key, int64_t head_dim, int64_t slot, Bits* block) {
  Pair* into = reinterpret_cast<Pair*>(block) + slot;
  const Pair* pairs = reinterpret_cast<const Pair*>(key);
  for (int64_t p = 0; p < head_dim / 2; ++p) into[p * kBlockTokens] = pairs[p];
}

void store_value(const Bits* value, int64_t head_dim, int64_t slot, bool last, Bits* block) {
  Bits* into = block + slot / 2 * 2 * head_dim + slot % 2;
  for (int64_t d = 0; d < head_dim; ++d) into[2 * d] = value[d];
  if (last && slot % 2 == 0)
    for (int64_t d = 0; d < head_dim; ++d) into[2 * d + 1] = 0;
}

void attend_blocks(const BlockHead& head, int64_t first, int64_t count, const Bits* q,
                   const void* const* blocks, int64_t keys, int64_t values, Bits* output) {
  const int64_t d = head.head_dim, rows = count * head.group;
  const int64_t seen = head.past + first + count;
  const int64_t block_count = panels(seen, kBlockTokens), padded = panels(seen, wide) * wide;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const auto scores = scratch<float>(rows * padded);
  const auto probabilities = scratch<Bits>(rows * padded);
  const auto query = [&](int64_t row) {
    return reinterpret_cast<const Pair*>(q + (first + row / head.group) * head.q_stride +
                                         row % head.group * d);
  };
  const auto probability = [&](int64_t row) {
    return reinterpret_cast<const Pair*>(probabilities.get() + row * padded);
  };
  for (int64_t block = 0; block < block_count; block += wide / kBlockTokens)
    in_tiles(rows, [&]<int M>(int64_t row) {
      const Pair* queries[M];
      for (int m = 0; m < M; ++m) queries[m] = query(row + m);
      score_tile<M>(queries, blocks + block, keys, std::min(block_count - block, wide / kBlockTokens), d / 2,
                    scores.get() + row * padded + block * kBlockTokens, padded);
    });
  const auto factors = scratch<float>(rows);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t own = head.past + first + row / head.group + 1;
    const float* of_row = scores.get() + row * padded;
    const float offset = scale * largest_of(of_row, own);
    factors[row] = 1.0f / exponentials_to(of_row, own, block_count * kBlockTokens, scale, offset,
                                          probabilities.get() + row * padded);
  }
  for (int64_t column = 0; column < d; column += wide)
    in_tiles(rows, [&]<int M>(int64_t row) {
      const Pair* weights[M];
      Bits* into[M];
      for (int m = 0; m < M; ++m) {
        weights[m] = probability(row + m);
        into[m] = output + (first + (row + m) / head.group) * head.output_stride +
                  (row + m) % head.group * d + column;
      }
      weigh_tile<M>(weights, blocks, values + 2 * column, seen, d, factors.get() + row, into);
    });
}

void attend(const Head& head, const Bits* q, const Bits* k, const Bits* v, Bits* output, float* logsumexp) {
  const int64_t d = head.head_dim, past = head.length - head.fresh, padded = panels(head.length, wide) * wide;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const auto keys = scratch<Pair>(padded * d / 2), values = scratch<Pair>(padded * d / 2);
  pack_transposed(k, head.kv_stride, head.length, d / 2, keys.get());
  const int64_t value_pairs = (head.length + 1) / 2;
  for (int64_t p = 0; p < d / wide; ++p)
    pack_row_pairs<wide>(v, head.kv_stride, head.length, d, p * wide, values.get() + p * value_pairs * wide);
  const auto scores = scratch<float>(query_block * padded), sums = scratch<float>(query_block * d);
  const auto probabilities = scratch<Bits>(query_block * padded);
  float factors[query_block];
  for (int64_t first = 0; first < head.fresh; first += query_block) {
    const int64_t count = std::min(query_block, head.fresh - first), seen = past + first + count;
    const int64_t seen_padded = panels(seen, wide) * wide;
    product(rows_of(q + first * head.q_stride, head.q_stride), keys.get(), d / 2 * wide, d / 2, count,
            seen_padded, scores.get(), padded, false);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t own = past + first + i + 1;
      const float offset = scale * largest_of(scores.get() + i * padded, own);
      const float sum = exponentials_to(scores.get() + i * padded, own, seen_padded, scale, offset,
                                        probabilities.get() + i * padded);
      factors[i] = 1.0f / sum;
      if (logsumexp) logsumexp[first + i] = offset + std::log(sum);
    }
    product(rows_of(probabilities.get(), padded), values.get(), value_pairs * wide, (seen + 1) / 2, count, d,
            sums.get(), d, false);
    for (int64_t i = 0; i < count; ++i)
      round_scaled(sums.get() + i * d, d, factors[i], output + (first + i) * head.output_stride);
  }
}

void attend_backward(const Head& head, const Bits* q, const Bits* k, const Bits* v, const Bits* output,
                     const float* logsumexp, const Bits* grad, Bits* grad_q, float* grad_k, float* grad_v) {
  const int64_t d = head.head_dim, length = head.length, padded = panels(length, wide) * wide;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const int64_t key_pairs = (length + 1) / 2, d_panels = d / wide, block_pairs = query_block / 2;
  const auto keys = scratch<Pair>(padded * d / 2), values = scratch<Pair>(padded * d / 2);
  const auto key_rows = scratch<Pair>(key_pairs * d);
  pack_transposed(k, head.kv_stride, length, d / 2, keys.get());
  pack_transposed(v, head.kv_stride, length, d / 2, values.get());
  for (int64_t p = 0; p < d_panels; ++p)
    pack_row_pairs<wide>(k, head.kv_stride, length, d, p * wide, key_rows.get() + p * key_pairs * wide);
  const auto scores = scratch<float>(query_block * padded),
             at_probabilities = scratch<float>(query_block * padded);
  const auto probabilities = scratch<Bits>(query_block * padded),
             at_scores = scratch<Bits>(query_block * padded);
  const auto turned = scratch<Pair>(panels(padded, tall) * tall * block_pairs);
  const auto right = scratch<Pair>(block_pairs * d);
  const auto sums = scratch<float>(query_block * d);
  std::fill(grad_k, grad_k + length * d, 0.0f);
  std::fill(grad_v, grad_v + length * d, 0.0f);

  for (int64_t first = 0; first < length; first += query_block) {
    const int64_t count = std::min(query_block, length - first), seen = first + count,
                  pairs = (count + 1) / 2;
    const int64_t seen_padded = panels(seen, wide) * wide;
    const Bits* const queries = q + first * head.q_stride;
    const Bits* const upstream = grad + first * head.output_stride;
    product(rows_of(queries, head.q_stride), keys.get(), d / 2 * wide, d / 2, count, seen_padded,
            scores.get(), padded, false);
    product(rows_of(upstream, head.output_stride), values.get(), d / 2 * wide, d / 2, count, seen_padded,
            at_probabilities.get(), padded, false);
    for (int64_t i = 0; i < count; ++i) {
      exponentials_to(scores.get() + i * padded, first + i + 1, seen_padded, scale, logsumexp[first + i],
                      probabilities.get() + i * padded);
      softmax_backward(probabilities.get() + i * padded, at_probabilities.get() + i * padded, seen_padded,
                       dot(upstream + i * head.output_stride, output + (first + i) * head.output_stride, d),
                       scale, at_scores.get() + i * padded);
    }
    product(rows_of(at_scores.get(), padded), key_rows.get(), key_pairs * wide, (seen + 1) / 2, count, d,
            sums.get(), d, false);
    for (int64_t i = 0; i < count; ++i)
      round_scaled(sums.get() + i * d, d, 1.0f, grad_q + (first + i) * head.q_stride);

    const auto add_turned = [&](const Bits* left, const Bits* rows, int64_t stride, float* sum) {
      for (int64_t p = 0; p < panels(seen, tall); ++p)
        pack_row_pairs<tall>(left, padded, count, seen, p * tall, turned.get() + p * pairs * tall);
      for (int64_t p = 0; p < d_panels; ++p)
        pack_row_pairs<wide>(rows, stride, count, d, p * wide, right.get() + p * pairs * wide);
      product({turned.get(), pairs * tall, 1, tall}, right.get(), pairs * wide, pairs, seen, d, sum, d, true);
    };
    add_turned(probabilities.get(), upstream, head.output_stride, grad_v);
    add_turned(at_scores.get(), queries, head.q_stride, grad_k);
  }
}

#else

bool available() { return false; }
void linear(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, Bits*) {}
void linear(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, float*) {}
void add_transposed_product(const Bits*, const Bits*, int64_t, int64_t, int64_t, float*) {}
int64_t packed_size(int64_t, int64_t) { return 0; }
void pack_weights(const Bits*, int64_t, int64_t, Bits*) {}
void packed_linear(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, Bits*) {}
void packed_linear(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, float*, int64_t, bool) {}
int64_t int8_scales(int64_t, int64_t) { return 0; }
void pack_int8(const Bits*, int64_t, int64_t, int8_t*, float*) {}
void packed_linear(const Bits*, int64_t, const int8_t*, const float*, const Bits*, int64_t, int64_t, Bits*) {}
void packed_linear(const Bits*, int64_t, const int8_t*, const float*, const Bits*, int64_t, int64_t, float*,
                   int64_t, bool) {}
void store_key(const Bits*, int64_t, int64_t, Bits*) {}
void store_value(const Bits*, int64_t, int64_t, bool, Bits*) {}
void attend_blocks(const BlockHead&, int64_t, int64_t, const Bits*, const void* const*, int64_t, int64_t,
                   Bits*) {}
void attend(const Head&, const Bits*, const Bits*, const Bits*, Bits*, float*) {}
void attend_backward(const Head&, const Bits*, const Bits*, const Bits*, const Bits*, const float*,
                     const Bits*, Bits*, float*, float*) {}
void rms_norm(const Bits*, int64_t, int64_t, const Bits*, float, Bits*) {}
void rms_norm(const float*, int64_t, int64_t, const Bits*, float, Bits*) {}
void rms_norm_backward(const Bits*, const Bits*, const Bits*, int64_t, int64_t, const Bits*, float, Bits*,
                       float*) {}
void gated_silu(const Bits*, int64_t, int64_t, Bits*) {}
void gated_silu_backward(const Bits*, const Bits*, int64_t, int64_t, Bits*) {}
void rotate(Bits*, int64_t, int64_t, int64_t, int64_t, const float*, const float*, const int64_t*, float) {}

#endif

}  // namespace nlac::bf16
