#include "core/loss/logit_cap.h"

#include <ATen/Parallel.h>

#include <cmath>

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
  // One function for every element: libtorch's takes another at the end of a row.
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "cap_logits", [&] {
    scalar_t* const first = logits.mutable_data_ptr<scalar_t>();
    scalar_t* const slope = slopes.defined() ? slopes.mutable_data_ptr<scalar_t>() : nullptr;
    at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        scalar_t* const row = first + r * logits.stride(0);
        for (int64_t i = 0; i < vocab; ++i) {
          const scalar_t t = std::tanh(row[i] / static_cast<scalar_t>(cap));
          row[i] = static_cast<scalar_t>(cap) * t;
          if (slope != nullptr) slope[r * slopes.stride(0) + i] = 1 - t * t;
        }
      }
    });
  });
}

}  // namespace nlac
