#include "core/loss/row_kernels.h"

#include <algorithm>
#include <numeric>

#include "core/cpu/variants.h"

#define NLAC_VARIANT baseline
#define NLAC_LANES 4
#include "core/loss/row_kernels.inc"

#ifdef NLAC_X86_VARIANTS
NLAC_BEGIN_AVX2
#define NLAC_VARIANT avx2
#define NLAC_LANES 8
#include "core/loss/row_kernels.inc"
NLAC_END_VARIANT

NLAC_BEGIN_AVX512
#define NLAC_VARIANT avx512
#define NLAC_LANES 16
#include "core/loss/row_kernels.inc"
NLAC_END_VARIANT
#endif

namespace nlac::row_kernels {

NLAC_ALL_KERNELS

// A heap of the best so far, with the worst on top. Most logits need one comparison.
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
