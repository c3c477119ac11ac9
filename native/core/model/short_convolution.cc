#include "core/model/short_convolution.h"

#include <algorithm>

namespace nlac {
namespace {

at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// Calls body(start, length, sequence) for each sequence.
template <typename Body>
void for_each_sequence(const std::vector<int64_t>& lengths, const Body& body) {
  int64_t start = 0;
  for (size_t i = 0; i < lengths.size(); start += lengths[i], ++i)
    body(start, lengths[i], static_cast<int64_t>(i));
}

// p of every token; x and weight in wide precision.
at::Tensor before_silu(const at::Tensor& x, const at::Tensor& weight, const std::vector<int64_t>& lengths,
                       const at::Tensor& past) {
  const int64_t kernel = weight.size(1);
  at::Tensor sums = x * weight.select(1, kernel - 1);
  for_each_sequence(lengths, [&](int64_t start, int64_t length, int64_t sequence) {
    for (int64_t back = 1; back < kernel; ++back) {
      const at::Tensor factor = weight.select(1, kernel - 1 - back);
      const int64_t before = std::min(back, length);  // tokens that look back beyond the sequence
      if (length > back)
        sums.narrow(0, start + back, length - back).addcmul_(x.narrow(0, start, length - back), factor);
      if (past.defined())
        sums.narrow(0, start, before)
            .addcmul_(past[sequence].narrow(0, kernel - 1 - back, before).to(sums.scalar_type()), factor);
    }
  });
  return sums;
}

}  // namespace

at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight,
                             const std::vector<int64_t>& lengths, const at::Tensor& past) {
  at::Tensor sums = before_silu(x.to(wide(x)), weight.to(wide(x)), lengths, past);
  return at::silu_(sums);
}

at::Tensor short_convolution_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                      const std::vector<int64_t>& lengths, at::Tensor grad_weight) {
  const int64_t kernel = weight.size(1);
  const at::Tensor inputs = x.to(wide(x)), factors = weight.to(wide(x));
  const at::Tensor at_sums = at::silu_backward(grad, before_silu(inputs, factors, lengths, {}));
  at::Tensor at_inputs = at_sums * factors.select(1, kernel - 1);
  for_each_sequence(lengths, [&](int64_t start, int64_t length, int64_t) {
    for (int64_t back = 1; back < kernel && back < length; ++back)
      at_inputs.narrow(0, start, length - back)
          .addcmul_(at_sums.narrow(0, start + back, length - back), factors.select(1, kernel - 1 - back));
  });
  if (!grad_weight.defined()) return at_inputs;
  grad_weight.select(1, kernel - 1).add_((at_sums * inputs).sum(0));
  for_each_sequence(lengths, [&](int64_t start, int64_t length, int64_t) {
    for (int64_t back = 1; back < kernel && back < length; ++back)
      grad_weight.select(1, kernel - 1 - back)
          .add_((at_sums.narrow(0, start + back, length - back) * inputs.narrow(0, start, length - back))
                    .sum(0));
  });
  return at_inputs;
}

}  // namespace nlac
