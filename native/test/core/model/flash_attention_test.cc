// Attention by libtorch's flash kernels against the formula. test_cuda_inference runs it on the CPU, by an
// emulation of these kernels.
#include "core/model/flash_attention.h"

#include "test/core/model/kernels_reference.h"

using namespace kernels_test;
using namespace nlac;

namespace {

constexpr at::DeviceType device = NLAC_KERNEL_DEVICE;

// A sink for each head, below, among and far above the scores.
at::Tensor sinks_for(int64_t heads) { return at::linspace(-3, 12, heads); }

}  // namespace

TEST_CASE("attention over packed sequences by a GPU's flash kernels" *
          doctest::skip(device == at::kCUDA && !at::hasCUDA())) {
  at::manual_seed(8);
  for (const auto& [heads, kv_heads, head_dim] :
       {std::tuple{9, 3, 64}, {14, 2, 128}, {4, 1, 256}, {2, 2, 40}}) {
    for (const Sight& sight : {Sight{}, Sight{1, 0}, Sight{17, 0.2}, Sight{300, 0.05},
                               Sight{0, 0, sinks_for(heads)}, Sight{17, 0.2, sinks_for(heads)}}) {
      CAPTURE(heads);
      CAPTURE(head_dim);
      CAPTURE(sight.window);
      CAPTURE(sight.sinks.defined());
      const Sequences sequences = sequences_of({1, 2, 63, 128, 700}, device);
      const at::Tensor qkv = random({894, heads + 2 * kv_heads, head_dim}, 1.5),
                       grad = random({894, heads, head_dim}), on_gpu = qkv.to(device),
                       upstream = grad.to(device), at_all = at::full_like(on_gpu, NAN);
      const auto part = [&](const at::Tensor& all, int64_t first, int64_t count) {
        return all.narrow(1, first, count);
      };
      const auto parts = [&](const at::Tensor& all) {
        return std::tuple{part(all, 0, heads), part(all, heads, kv_heads),
                          part(all, heads + kv_heads, kv_heads)};
      };
      Sight own = sight;
      if (own.sinks.defined()) own.sinks = own.sinks.to(device);
      const auto [q, k, v] = parts(on_gpu);
      const auto [grad_q, grad_k, grad_v] = parts(at_all);
      const Attended attended = packed_attention(q, k, v, sequences, own);
      packed_attention_backward(upstream, q, k, v, attended, sequences, grad_q, grad_k, grad_v, own);

      const auto [all_q, all_k, all_v] = parts(qkv);
      at::Tensor exact = at::empty_like(grad, at::kDouble), exact_sinks = at::zeros({heads}, at::kDouble);
      at::Tensor exact_q = at::empty_like(all_q, at::kDouble), exact_k = at::empty_like(all_k, at::kDouble),
                 exact_v = at::empty_like(all_v, at::kDouble);
      int64_t start = 0;
      for (const int64_t length : sequences.lengths) {
        const auto rows = [&](const at::Tensor& x) { return x.narrow(0, start, length); };
        const Formula one = formula(rows(all_q), rows(all_k), rows(all_v), rows(grad), sight);
        rows(exact).copy_(one.output), rows(exact_q).copy_(one.q);
        rows(exact_k).copy_(one.k), rows(exact_v).copy_(one.v);
        if (one.sinks.defined()) exact_sinks.add_(one.sinks);
        start += length;
      }
      CHECK(relative(attended.output.cpu(), exact) < 1e-2);
      // With a window of one token the gradients of q and k are 0.
      const double floor = exact_v.norm().item<double>() * (sight.window == 1 ? 1 : 0);
      CHECK(relative(grad_q.cpu(), exact_q, floor) < 1.5e-2);
      CHECK(relative(grad_k.cpu(), exact_k, floor) < 1.5e-2);
      CHECK(relative(grad_v.cpu(), exact_v) < 1.5e-2);
      if (own.sinks.defined())
        CHECK(relative(sinks_backward(upstream, attended, sequences, own.sinks).cpu(), exact_sinks) < 1.5e-2);

      // The same without flash kernels.
      const Attended blocks = packed_attention(q, k, v, {sequences.lengths}, own);
      CHECK(blocks.logsumexp.size() == sequences.lengths.size());
      CHECK(relative(blocks.output.cpu(), exact) < 1e-2);
    }
  }
}
