#include "core/model/short_convolution.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "core/cpu/delta_kernels.h"
#include "core/cpu/shares.h"
#include "core/cpu/tensors.h"
#include "core/model/upload.h"

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

// Whether a token has no token `back` places before it in its sequence, for back = 1, 2, … < kernel: each
// [tokens - back, 1], for tokens from `back` on. Undefined where all have one: a single sequence.
std::vector<at::Tensor> beyond_sequence(const at::Tensor& x, const std::vector<int64_t>& lengths,
                                        int64_t kernel) {
  std::vector<at::Tensor> masks(static_cast<size_t>(kernel));
  if (lengths.size() == 1) return masks;
  std::vector<int64_t> places;
  for (const int64_t length : lengths)
    for (int64_t t = 0; t < length; ++t) places.push_back(t);
  const at::Tensor place = upload(at::tensor(places, at::kLong), x.device()).unsqueeze(1);
  for (int64_t back = 1; back < std::min(kernel, x.size(0)); ++back)
    masks[static_cast<size_t>(back)] = place.narrow(0, back, x.size(0) - back) < back;
  return masks;
}
at::Tensor masked(const at::Tensor& x, const at::Tensor& mask) {
  return mask.defined() ? x.masked_fill(mask, 0) : x;
}

// Calls body(tap, mask, earlier, later) for each column `tap` of the weight that multiplies an earlier
// token. Of a tensor with x's rows, later(rows) are those of the tokens that read one, earlier(rows) those of
// the tokens that they read.
template <typename Body>
void for_each_back(const at::Tensor& x, const at::Tensor& weight, const std::vector<at::Tensor>& masks,
                   const Body& body) {
  const int64_t kernel = weight.size(1), tokens = x.size(0);
  for (int64_t back = 1; back < std::min(kernel, tokens); ++back)
    body(
        kernel - 1 - back, masks[static_cast<size_t>(back)],
        [=](const at::Tensor& rows) { return rows.narrow(0, 0, tokens - back); },
        [=](const at::Tensor& rows) { return rows.narrow(0, back, tokens - back); });
}

// p of every token; x and weight in wide precision. Without a past, all sequences at once.
at::Tensor before_silu(const at::Tensor& x, const at::Tensor& weight, const std::vector<int64_t>& lengths,
                       const std::vector<at::Tensor>& past, const std::vector<at::Tensor>& masks) {
  const int64_t kernel = weight.size(1);
  at::Tensor sums = x * weight.select(1, kernel - 1);
  for_each_back(x, weight, masks, [&](int64_t tap, const at::Tensor& mask, auto earlier, auto later) {
    later(sums).addcmul_(masked(earlier(x), mask), weight.select(1, tap));
  });
  if (past.empty()) return sums;
  for_each_sequence(lengths, [&](int64_t start, int64_t length, int64_t sequence) {
    for (int64_t back = 1; back < kernel; ++back) {
      const int64_t before = std::min(back, length);  // tokens that look back beyond the sequence
      sums.narrow(0, start, before)
          .addcmul_(past[static_cast<size_t>(sequence)].narrow(0, kernel - 1 - back, before),
                    weight.select(1, kernel - 1 - back));
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
  const at::Tensor inputs = x.to(wide(x));
  at::Tensor sums = before_silu(inputs, weight.to(wide(x)), lengths, past,
                                beyond_sequence(inputs, lengths, weight.size(1)));
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
  const std::vector<at::Tensor> masks = beyond_sequence(inputs, lengths, kernel);
  const at::Tensor at_sums = at::silu_backward(grad, before_silu(inputs, factors, lengths, {}, masks));
  at::Tensor at_inputs = at_sums * factors.select(1, kernel - 1);
  if (grad_weight.defined()) grad_weight.select(1, kernel - 1).add_((at_sums * inputs).sum(0));
  for_each_back(inputs, factors, masks, [&](int64_t tap, const at::Tensor& mask, auto earlier, auto later) {
    const at::Tensor at_later = masked(later(at_sums), mask);
    earlier(at_inputs).addcmul_(at_later, factors.select(1, tap));
    if (grad_weight.defined()) grad_weight.select(1, tap).add_((at_later * earlier(inputs)).sum(0));
  });
  at_x.copy_(at_inputs);
}

}  // namespace nlac
