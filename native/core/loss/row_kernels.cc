#include "core/loss/row_kernels.h"

#include <algorithm>
#include <numeric>

// Vectors never cross a function that is not inlined, so their calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#define NLAC_VARIANT baseline
#include "core/loss/row_kernels.inc"
#undef NLAC_VARIANT

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NLAC_X86_VARIANTS

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NLAC_VARIANT avx2
#include "core/loss/row_kernels.inc"
#undef NLAC_VARIANT
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#define NLAC_VARIANT avx512
#include "core/loss/row_kernels.inc"
#undef NLAC_VARIANT
#pragma GCC pop_options
#endif

namespace nlac::row_kernels {

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

// A heap of the best so far, its worst on top; most logits fail the one comparison with it.
void select_top(const float* logits, int64_t vocab, int64_t k, std::vector<int64_t>& indices) {
  const auto better = [logits](int64_t a, int64_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  indices.resize(static_cast<size_t>(k));
  std::iota(indices.begin(), indices.end(), 0);
  std::make_heap(indices.begin(), indices.end(), better);
  for (int64_t i = k; i < vocab; ++i) {
    if (!(logits[i] > logits[indices.front()])) continue;
    std::pop_heap(indices.begin(), indices.end(), better);
    indices.back() = i;
    std::push_heap(indices.begin(), indices.end(), better);
  }
}

}  // namespace nlac::row_kernels
