#include "core/optim/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NLAC_X86_VARIANTS
#include <immintrin.h>
// GCC 12 takes its own intrinsics' deliberately undefined operands for a mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// The loops of kernels.inc rely on being vectorised, which -O2 alone does not promise.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-trapping-math")
#endif

#define NLAC_VARIANT baseline
#define NLAC_SQUARE_ROOTS(to, from) \
  for (int j = 0; j < 16; ++j) (to)[j] = __builtin_sqrtf((from)[j])
#include "core/optim/kernels.inc"
#undef NLAC_VARIANT
#undef NLAC_SQUARE_ROOTS

#ifdef NLAC_X86_VARIANTS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NLAC_VARIANT avx2
#define NLAC_SQUARE_ROOTS(to, from)                            \
  _mm256_storeu_ps(to, _mm256_sqrt_ps(_mm256_loadu_ps(from))); \
  _mm256_storeu_ps((to) + 8, _mm256_sqrt_ps(_mm256_loadu_ps((from) + 8)))
#include "core/optim/kernels.inc"
#undef NLAC_VARIANT
#undef NLAC_SQUARE_ROOTS
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define NLAC_VARIANT avx512
#define NLAC_SQUARE_ROOTS(to, from) _mm512_storeu_ps(to, _mm512_sqrt_ps(_mm512_loadu_ps(from)))
#include "core/optim/kernels.inc"
#undef NLAC_VARIANT
#undef NLAC_SQUARE_ROOTS
#pragma GCC pop_options
#endif

namespace nlac::optim_kernels {

const std::vector<const Kernels*>& all_kernels() {
  static const std::vector<const Kernels*> all = [] {
    std::vector<const Kernels*> found;
#ifdef NLAC_X86_VARIANTS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      found.push_back(&avx512::table);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&avx2::table);
#endif
    found.push_back(&baseline::table);
    return found;
  }();
  return all;
}

}  // namespace nlac::optim_kernels
