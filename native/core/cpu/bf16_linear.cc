#include "core/cpu/bf16_kernels.h"

#if defined(__x86_64__)

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/cpu/bf16_amx.h"
#include "core/cpu/bf16_products.h"
#include "core/cpu/bf16_vectors.h"

namespace nlac::bf16 {
namespace {

// --- few rows times a weight matrix --------------------------------------------------------------

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
      // Few streams do not saturate the memory, so the next block is prefetched.
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
      int64_t m = 0;  // the block's weights stay in the L1 cache for all rows
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

// --- packed weights ------------------------------------------------------------------------------

int64_t int8_groups(int64_t in) { return (in + int8_group - 1) / int8_group; }

// A packed matrix or one of its panels: `in` / 2 pairs of 64 columns, as from pack_weights.
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

// tile[m] += the products of M rows, `stride` pairs apart, with one panel's 64 columns, over pairs
// [first, last).
template <int M, typename Panel>
NLAC_AVX512_INLINE void add_products(const Pair* rows, int64_t stride, Panel panel, int64_t first,
                                     int64_t last, __m512 (&tile)[M][4]) {
  for (int64_t p = first; p < last; ++p) {
    __m512bh column[4];
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) column[c] = panel.columns(p, c);
    // The first rows wait for memory, so the next columns are prefetched.
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

// Writes 16 columns of a result, `left` of them, from column `column` of the panel on.
template <typename Out>
NLAC_AVX512_INLINE void write(__m512 value, const Bits* bias, int64_t column, int64_t left, Out* row,
                              bool add) {
  const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << std::clamp<int64_t>(left, 0, 16)) - 1);
  if (bias) value = _mm512_add_ps(value, load16(bias + column, mask));
  Out* const into = row + column;
  if constexpr (sizeof(Out) == sizeof(Bits))
    store16(into, mask, value);
  else
    _mm512_mask_storeu_ps(into, mask, add ? _mm512_add_ps(_mm512_maskz_loadu_ps(mask, into), value) : value);
}

// y[m][0, 64) of M rows and one panel, `count` columns of it.
template <int M, typename Panel, typename Out>
NLAC_AVX512 void panel_tile(const Bits* x, Panel panel, const Bits* bias, int64_t in, int64_t count, Out* y,
                            int64_t stride, bool add) {
  __m512 tile[M][4];
  multiply(reinterpret_cast<const Pair*>(x), in / 2, panel, tile);
#pragma GCC unroll 16
  for (int c = 0; c < 4; ++c)
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) write(tile[m][c], bias, 16 * c, count - 16 * c, y + m * stride, add);
}

// The same for any number of rows, by matrix tiles.
template <typename Out>
NLAC_AVX512 void panel_by_tiles(const Bits* x, int64_t rows, Pairs panel, const Bits* bias, int64_t in,
                                int64_t count, Out* y, int64_t stride, bool add) {
  alignas(64) float sum[amx::most_rows * wide];
  for (int64_t first = 0; first < rows; first += amx::most_rows) {
    const int64_t here = std::min(amx::most_rows, rows - first);
    amx::panel_product(x + first * in, here, panel.weights, in / 2, sum);
    for (int64_t m = 0; m < here; ++m)
      for (int64_t c = 0; c < count; c += 16)
        write(_mm512_load_ps(sum + m * wide + c), bias, c, count - c, y + (first + m) * stride, add);
  }
}

template <typename Packed, typename Out>
void packed_linear_any(const Bits* x, int64_t rows, Packed packed, const Bits* bias, int64_t out, int64_t in,
                       Out* y, int64_t stride, bool add) {
  constexpr int64_t block = 96;  // rows that stay in the L2 cache for all panels
  // Decided by the matrix alone, so that a row's result does not depend on the number of rows.
  const bool by_tiles = std::is_same_v<Packed, Pairs> && in / 2 % amx::pair_step == 0 && amx::available();
  at::parallel_for(0, panels(out, wide), 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = 0; first < rows; first += block)
      for (int64_t p = begin; p < end; ++p) {
        const Packed panel = packed.panel(p, in);
        const int64_t here = std::min(block, rows - first), count = std::min(wide, out - p * wide);
        const Bits* const x_here = x + first * in;
        const Bits* const bias_here = bias ? bias + p * wide : nullptr;
        Out* const y_here = y + first * stride + p * wide;
        if constexpr (std::is_same_v<Packed, Pairs>) {
          if (by_tiles) {
            panel_by_tiles(x_here, here, panel, bias_here, in, count, y_here, stride, add);
            continue;
          }
        }
        in_tiles(here, [&]<int M>(int64_t row) {
          panel_tile<M>(x_here + row * in, panel, bias_here, in, count, y_here + row * stride, stride, add);
        });
      }
    if (by_tiles) amx::release();
  });
}

// A pair's even and odd numbers of 16 columns, in float32.
NLAC_AVX512_INLINE __m512 even_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
NLAC_AVX512_INLINE __m512 odd_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(~0xffff)));
}

// Rounds 16 columns of a panel of bf16 to one of int8, the `pairs` pairs of a group. Where a weight
// is not finite the scale is NaN; where all are 0 it is 0, and any numbers will do.
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

void linear(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in,
            Bits* y) {
  linear_any(x, rows, weight, bias, out, in, y);
}
void linear(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in,
            float* y) {
  linear_any(x, rows, weight, bias, out, in, y);
}

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

}  // namespace nlac::bf16

#endif
