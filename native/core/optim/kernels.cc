// Products and sums are rounded separately, so that every instruction set gives the same bits.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-trapping-math", "fp-contract=off")
#else
#pragma STDC FP_CONTRACT OFF
#endif

// Vectors are never passed to a function that is not inlined, so their calling convention does not
// matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#include "core/optim/kernels.h"

#include "core/instruction_set.h"

#ifdef NLAC_X86_VARIANTS
#include <immintrin.h>
// GCC 12 warns of the deliberately undefined operands in its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define NLAC_VARIANT baseline
#define NLAC_LANES 4
#define NLAC_SQUARE_ROOTS(roots, v) \
  for (int j = 0; j < NLAC_LANES; ++j) roots[j] = __builtin_sqrtf(v[j])
#define NLAC_WIDE_PRODUCTS(v, factor) (((v) & 0xFFFFFFFFu) * uint64_t{factor})
#define NLAC_STREAM(to, halves) __builtin_memcpy(to, &halves, sizeof(halves))
#define NLAC_FENCE()
#include "core/optim/kernels.inc"

#ifdef NLAC_X86_VARIANTS
NLAC_BEGIN_AVX2
#define NLAC_VARIANT avx2
#define NLAC_LANES 8
#define NLAC_SQUARE_ROOTS(roots, v) roots = (Floats)_mm256_sqrt_ps((__m256)v)
#define NLAC_WIDE_PRODUCTS(v, factor) ((LongWords)_mm256_mul_epu32((__m256i)(v), _mm256_set1_epi64x(factor)))
#define NLAC_STREAM(to, halves) _mm_stream_si128((__m128i*)(to), (__m128i)(halves))
#define NLAC_FENCE() _mm_sfence()
#include "core/optim/kernels.inc"
NLAC_END_VARIANT

NLAC_BEGIN_AVX512
#define NLAC_VARIANT avx512
#define NLAC_LANES 16
#define NLAC_SQUARE_ROOTS(roots, v) roots = (Floats)_mm512_sqrt_ps((__m512)v)
#define NLAC_WIDE_PRODUCTS(v, factor) ((LongWords)_mm512_mul_epu32((__m512i)(v), _mm512_set1_epi64(factor)))
#define NLAC_STREAM(to, halves) _mm256_stream_si256((__m256i*)(to), (__m256i)(halves))
#define NLAC_FENCE() _mm_sfence()
#include "core/optim/kernels.inc"
NLAC_END_VARIANT
#endif

namespace nlac::optim_kernels {

NLAC_ALL_KERNELS

}  // namespace nlac::optim_kernels
