// Vector functions of the AVX-512 BF16 kernels (bf16_*.cc): loads, stores, sums and e^x. x86-64
// only.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <memory>

#include "core/cpu/bf16_kernels.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // in GCC 12's own unmasked intrinsics (its bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define NLAC_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define NLAC_AVX512_INLINE NLAC_AVX512 __attribute__((always_inline)) inline

namespace nlac::bf16 {

// Uninitialised memory for intermediate results.
template <typename T>
std::unique_ptr<T[]> scratch(int64_t count) {
  return std::unique_ptr<T[]>(new T[count]);
}

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

// Word i of row j ↔ word j of row i, by exchanging ever larger squares.
NLAC_AVX512 inline void transpose_words(__m512i (&rows)[16]) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 4
  for (int d = 1; d < 16; d *= 2) {
    const __m512i other = _mm512_xor_si512(lane, _mm512_set1_epi32(d));
    const __mmask16 upper = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(d));
    // Lanes with bit d clear stay in the first row and leave the second, the others the reverse.
    // Bit 4 of an index names the second row.
    const __m512i second = _mm512_set1_epi32(16);
    const __m512i low = _mm512_mask_or_epi32(lane, upper, other, second);
    const __m512i high = _mm512_mask_or_epi32(other, upper, lane, second);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i & d) continue;
      const __m512i a = rows[i], b = rows[i | d];
      rows[i] = _mm512_permutex2var_epi32(a, low, b);
      rows[i | d] = _mm512_permutex2var_epi32(a, high, b);
    }
  }
}

// e^x to two ulps; 0 and infinity where float32 ends. NaN for NaN: max and min pass on their second
// operand.
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

}  // namespace nlac::bf16
