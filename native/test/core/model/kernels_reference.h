// Random inputs, formulas in float64, and distances from them.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "core/cpu/kernels.h"
#include "core/model/attention.h"
#include "core/model/elementwise.h"
#include "core/model/linear.h"

namespace kernels_test {

using namespace nlac;
inline at::Tensor random(at::IntArrayRef shape, double scale = 1.0) {
  return (at::randn(shape) * scale).to(at::kBFloat16);
}

inline double largest(const at::Tensor& x) { return x.to(at::kDouble).abs().max().item<double>(); }

// The largest difference from the exact result, in units of half a bfloat16 step at that result's
// size.
inline double half_steps(const at::Tensor& result, const at::Tensor& exact, double floor) {
  const at::Tensor step = exact.abs().clamp_min(floor) * std::ldexp(1.0, -8);
  return largest((result.to(at::kDouble) - exact) / step);
}

inline double relative(const at::Tensor& result, const at::Tensor& exact, double floor = 0) {
  return (result.to(at::kDouble) - exact).norm().item<double>() /
         std::max(exact.norm().item<double>(), floor);
}

// Causal attention by its formula, in float64, with autograd's gradients. q [fresh, heads,
// head_dim], k and v [length, kv_heads, head_dim]; the queries are the last ones.
struct Formula {
  at::Tensor output, q, k, v, sinks;
};
inline Formula formula(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& grad,
                       const Sight& sight = {}) {
  const auto [window, scale, sinks] = sight;
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble, false, true).requires_grad_(); };
  std::vector<at::Tensor> inputs{leaf(q), leaf(k), leaf(v)};
  const int64_t group = q.size(1) / k.size(1), fresh = q.size(0), length = k.size(0);
  const auto of_heads = [&](const at::Tensor& x) { return x.repeat_interleave(group, 1); };
  const at::Tensor scores = at::einsum("qhd,khd->hqk", {inputs[0], of_heads(inputs[1])}) *
                            (scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(q.size(2))));
  at::Tensor ahead = at::ones({fresh, length}, at::kBool).triu(length - fresh + 1);
  if (window > 0)
    ahead = ahead.logical_or(at::ones({fresh, length}, at::kBool).tril(length - fresh - window));
  at::Tensor seen = scores.masked_fill(ahead, -INFINITY);
  if (sinks.defined()) {
    inputs.push_back(leaf(sinks));
    seen = at::cat({seen, inputs.back().view({-1, 1, 1}).expand({-1, fresh, 1})}, -1);
  }
  const at::Tensor shares = at::softmax(seen, -1).narrow(-1, 0, length);
  const at::Tensor output = at::einsum("hqk,khd->qhd", {shares, of_heads(inputs[2])});
  const auto gradients = torch::autograd::grad({output}, inputs, {grad.to(at::kDouble)});
  return {output.detach(), gradients[0], gradients[1], gradients[2],
          sinks.defined() ? gradients[3] : at::Tensor()};
}

// Stands in for libtorch's allocator on the CPU and remembers the largest request.
class Watch final : public c10::Allocator {
 public:
  explicit Watch(c10::Allocator* real) : real_(real) {}
  c10::DataPtr allocate(size_t bytes) override {
    size_t before = largest.load();
    while (before < bytes && !largest.compare_exchange_weak(before, bytes)) {
    }
    return real_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return real_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    real_->copy_data(to, from, bytes);
  }
  std::atomic<size_t> largest = 0;

 private:
  c10::Allocator* real_;
};

// Bytes of the largest tensor that `body` allocates.
template <typename Body>
size_t largest_allocation(const Body& body) {
  c10::Allocator* const real = c10::GetCPUAllocator();
  Watch watch(real);
  c10::SetCPUAllocator(&watch);
  body();
  c10::SetCPUAllocator(real);
  return watch.largest;
}

struct Threads {
  int before = at::get_num_threads();
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
};

}  // namespace kernels_test
