#if defined(__x86_64__)

#include "core/cpu/bf16_products.h"

#include <ATen/Parallel.h>

#include "core/cpu/bf16_amx.h"
#include "core/cpu/bf16_vectors.h"

namespace nlac::bf16 {
namespace {

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

}  // namespace

void product(const Left& left, const Pair* right, int64_t panel_step, int64_t pairs, int64_t m, int64_t n,
             float* sum, int64_t stride, bool add) {
  for (int64_t q = 0; q < panels(n, wide); ++q)
    for (int64_t p = 0; p < panels(m, tall); ++p)
      product_tile(left.pairs + p * left.panel_step, left.row_step, left.pair_step, right + q * panel_step,
                   pairs, sum + p * tall * stride + q * wide, stride, std::min(tall, m - p * tall),
                   std::min(wide, n - q * wide), add);
}

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

void add_transposed_product(const Bits* a, const Bits* b, int64_t rows, int64_t m, int64_t n, float* sum) {
  if (amx::available()) return amx::add_transposed_product(a, b, rows, m, n, sum);
  constexpr int64_t depth = 512;  // rows packed at a time: a panel of b then fits the L2 cache
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

}  // namespace nlac::bf16

#endif
