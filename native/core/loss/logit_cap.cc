#include "core/loss/logit_cap.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "core/loss/row_kernels.h"

namespace nlac {

void cap_logits(at::Tensor logits, double cap, at::Tensor slopes) {
  if (cap == 0) return;
  if (!logits.is_cpu()) {
    logits.div_(cap).tanh_();
    if (slopes.defined()) slopes.copy_(1 - logits.square());
    logits.mul_(cap);
    return;
  }
  const int64_t vocab = logits.size(1);
  if (logits.scalar_type() == at::kFloat) {
    at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        row_kernels::kernels().cap(
            logits.data_ptr<float>() + r * logits.stride(0), vocab, static_cast<float>(cap),
            slopes.defined() ? slopes.data_ptr<float>() + r * slopes.stride(0) : nullptr);
    });
    return;
  }
  // One function for every element: libtorch's takes another at the end of a row.
  double* const first = logits.data_ptr<double>();
  double* const slope = slopes.defined() ? slopes.data_ptr<double>() : nullptr;
  at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      double* const row = first + r * logits.stride(0);
      for (int64_t i = 0; i < vocab; ++i) {
        const double t = std::tanh(row[i] / cap);
        row[i] = cap * t;
        if (slope != nullptr) slope[r * slopes.stride(0) + i] = 1 - t * t;
      }
    }
  });
}

}  // namespace nlac
