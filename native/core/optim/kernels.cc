#include "core/optim/kernels.h"

// The loops of kernels.inc rely on being vectorised, which -O2 alone does not promise. Square roots here are
// of sums of squares, so nothing waits for errno.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math")
#endif

#define NLAC_VARIANT baseline
#include "core/optim/kernels.inc"
#undef NLAC_VARIANT

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NLAC_X86_VARIANTS

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NLAC_VARIANT avx2
#include "core/optim/kernels.inc"
#undef NLAC_VARIANT
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define NLAC_VARIANT avx512
#include "core/optim/kernels.inc"
#undef NLAC_VARIANT
#pragma GCC pop_options
#endif

namespace nlac::optim_kernels {

const Kernels& kernels() {
#ifdef NLAC_X86_VARIANTS
  static const Kernels& chosen = [&]() -> const Kernels& {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return avx512::table;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::table;
    return baseline::table;
  }();
  return chosen;
#else
  return baseline::table;
#endif
}

const Kernels& baseline_kernels() { return baseline::table; }

}  // namespace nlac::optim_kernels
