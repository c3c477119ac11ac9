#include "core/model/short_convolution.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "core/cpu/delta_kernels.h"
#include "core/cpu/shares.h"
#include "core/cpu/tensors.h"

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
                       const std::vector<at::Tensor>& past) {
  const int64_t kernel = weight.size(1);
  at::Tensor sums = x * weight.select(1, kernel - 1);
  for_each_sequence(lengths, [&](int64_t start, int64_t length, int64_t sequence) {
    for (int64_t back = 1; back < kernel; ++back) {
      const at::Tensor factor = weight.select(1, kernel - 1 - back);
      const int64_t before = std::min(back, length);  // tokens that look back beyond the sequence
      if (length > back)
        sums.narrow(0, start + back, length - back).addcmul_(x.narrow(0, start, length - back), factor);
      if (!past.empty())
        sums.narrow(0, start, before)
            .addcmul_(past[static_cast<size_t>(sequence)].narrow(0, kernel - 1 - back, before), factor);
    }
  });
  return sums;
}

// --- by the kernels, on a CPU --------------------------------------------------------------------

// Their weight, [kernel, channels] f32.
at::Tensor factors_of(const at::Tensor& weight) { return weight.to(at::kFloat).t().contiguous(); }

// Channels [c, c + count) of a sequence from `start` on, without a result.
template <typename Number>
delta_kernels::Convolution<Number> work_of(const at::Tensor& x, const at::Tensor& factors, int64_t start,
                                           int64_t length, const float* past, int64_t c, int64_t count) {
  const int64_t channels = x.size(1);
  return {length,
          count,
          factors.size(0),
          cpu::numbers<Number>(x) + start * x.stride(0) + c,
          x.stride(0),
          past + c,
          factors.const_data_ptr<float>() + c,
          channels,
          channels,
          nullptr,
          0};
}

template <typename Number>
at::Tensor convolve_by_kernel(const at::Tensor& x, const at::Tensor& weight,
                              const std::vector<int64_t>& lengths, const std::vector<at::Tensor>& past) {
  constexpr int64_t part = 256;  // channels of a thread's share
  const int64_t channels = x.size(1), shares = cpu::parts(channels, part),
                count = static_cast<int64_t>(lengths.size());
  const at::Tensor factors = factors_of(weight), y = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  at::Tensor zeros;
  if (past.empty()) zeros = at::zeros({weight.size(1) - 1, channels}, y.options());
  std::vector<int64_t> starts;
  for_each_sequence(lengths, [&](int64_t start, int64_t, int64_t) { starts.push_back(start); });
  at::parallel_for(0, count * shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto s = static_cast<size_t>(i / shares);
      const int64_t c = i % shares * part;
      auto work = work_of<Number>(x, factors, starts[s], lengths[s],
                                  (past.empty() ? zeros : past[s]).template const_data_ptr<float>(), c,
                                  std::min(part, channels - c));
      work.y = y.template data_ptr<float>() + starts[s] * channels + c;
      work.y_stride = channels;
      delta_kernels::convolve(work);
    }
  });
  return y;
}

template <typename Number>
void convolve_backward_by_kernel(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                 const std::vector<int64_t>& lengths, const at::Tensor& at_x,
                                 at::Tensor grad_weight) {
  constexpr int64_t part = 64;  // channels whose gradients fit the cache
  const int64_t channels = x.size(1), longest = *std::max_element(lengths.begin(), lengths.end());
  const at::Tensor factors = factors_of(weight),
                   zeros = at::zeros({weight.size(1) - 1, channels}, grad.options()),
                   sums = at::zeros(factors.sizes(), grad.options());
  at::parallel_for(0, cpu::parts(channels, part), 1, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> room(new float[static_cast<size_t>(longest * part)]);
    for (int64_t i = begin; i < end; ++i)
      for_each_sequence(lengths, [&](int64_t start, int64_t length, int64_t) {
        const int64_t c = i * part;
        delta_kernels::convolve_backward(delta_kernels::ConvolutionBackward<Number>{
            work_of<Number>(x, factors, start, length, zeros.const_data_ptr<float>(), c,
                            std::min(part, channels - c)),
            grad.const_data_ptr<float>() + start * channels + c, channels,
            cpu::mutable_numbers<Number>(at_x) + start * at_x.stride(0) + c, at_x.stride(0),
            grad_weight.defined() ? sums.data_ptr<float>() + c : nullptr, room.get()});
      });
  });
  if (grad_weight.defined()) grad_weight.add_(sums.t());
}

}  // namespace

at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight,
                             const std::vector<int64_t>& lengths, const std::vector<at::Tensor>& past) {
  if (cpu::takes(x)) {
    at::Tensor y;
    cpu::with_number(
        x, [&]<typename Number>(Number) { y = convolve_by_kernel<Number>(x, weight, lengths, past); });
    return y;
  }
  at::Tensor sums = before_silu(x.to(wide(x)), weight.to(wide(x)), lengths, past);
  return at::silu_(sums);
}

void short_convolution_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                const std::vector<int64_t>& lengths, at::Tensor at_x,
                                at::Tensor grad_weight) {
  if (cpu::takes(x)) {
    cpu::with_number(x, [&]<typename Number>(Number) {
      convolve_backward_by_kernel<Number>(grad.contiguous(), x, weight, lengths, at_x, grad_weight);
    });
    return;
  }
  const int64_t kernel = weight.size(1);
  const at::Tensor inputs = x.to(wide(x)), factors = weight.to(wide(x));
  const at::Tensor at_sums = at::silu_backward(grad, before_silu(inputs, factors, lengths, {}));
  at::Tensor at_inputs = at_sums * factors.select(1, kernel - 1);
  for_each_sequence(lengths, [&](int64_t start, int64_t length, int64_t) {
    for (int64_t back = 1; back < kernel && back < length; ++back)
      at_inputs.narrow(0, start, length - back)
          .addcmul_(at_sums.narrow(0, start + back, length - back), factors.select(1, kernel - 1 - back));
  });
  at_x.copy_(at_inputs);
  if (!grad_weight.defined()) return;
  grad_weight.select(1, kernel - 1).add_((at_sums * inputs).sum(0));
  for_each_sequence(lengths, [&](int64_t start, int64_t length, int64_t) {
    for (int64_t back = 1; back < kernel && back < length; ++back)
      grad_weight.select(1, kernel - 1 - back)
          .add_((at_sums.narrow(0, start + back, length - back) * inputs.narrow(0, start, length - back))
                    .sum(0));
  });
}

}  // namespace nlac
