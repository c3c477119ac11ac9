// Packing of bfloat16 factors, and products of packed factors. x86-64 only.
//
// The dot product instruction multiplies pairs along the inner dimension. The right factor is
// packed so that a vector holds one pair each of 16 columns: panels of 64 columns,
// [panels][pairs][64] pairs, padded with zeros. The left factor's pairs are broadcast, 6 rows at a
// time, wherever they lie.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/cpu/bf16_kernels.h"
#include "core/cpu/bf16_vectors.h"

namespace nlac::bf16 {

using Pair = uint32_t __attribute__((may_alias));
constexpr int64_t tall = 6, wide = 64;

inline int64_t panels(int64_t columns, int64_t width) { return (columns + width - 1) / width; }

struct Left {
  const Pair* pairs;
  int64_t panel_step, row_step,
      pair_step;  // in pairs: from 6 rows to the next 6, from row to row, along a row
};
inline Left rows_of(const Bits* x, int64_t stride) {
  return {reinterpret_cast<const Pair*>(x), tall * stride / 2, stride / 2, 1};
}

// sum [m, n] (rows `stride` apart) = or += left [m, 2 pairs] · right [2 pairs, n], whose panels are
// `panel_step` pairs apart
void product(const Left& left, const Pair* right, int64_t panel_step, int64_t pairs, int64_t m, int64_t n,
             float* sum, int64_t stride, bool add);

// Packs one panel, columns [first, first + width) of `rows` rows of `source`, pairing row 2i with
// row 2i + 1.
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

// Packs the transpose of `source` [rows, 2 pairs]: its rows become the columns, pairs are those
// along a row.
void pack_transposed(const Bits* source, int64_t stride, int64_t rows, int64_t pairs, Pair* packed);

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

}  // namespace nlac::bf16
