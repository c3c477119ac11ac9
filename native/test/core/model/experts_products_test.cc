// Products of all experts at once against those expert by expert in float64.
#include "core/model/experts_products.h"

#include <doctest/doctest.h>

#include "core/model/kv_store.h"  // NLAC_KERNEL_DEVICE
#include "test/core/model/kernels_reference.h"

using namespace kernels_test;
using namespace nlac;

namespace {

constexpr at::DeviceType device = NLAC_KERNEL_DEVICE;

// Numbers that bfloat16 holds, in float64 on the CPU.
at::Tensor numbers(at::IntArrayRef sizes) {
  return at::randn(sizes).mul_(0.5).to(at::kBFloat16).to(at::kDouble);
}
at::Tensor on_device(const at::Tensor& x) { return x.defined() ? x.to(at::kBFloat16).to(device) : x; }

// Two projections in one matrix, of which the first, or both, are adapted.
Adapter adapter_of(int64_t experts, int64_t out, int64_t in, int64_t rank, int64_t parts) {
  Adapter adapter;
  for (int64_t i = 0; i < parts; ++i)
    adapter.parts.push_back({"part" + std::to_string(i), i * out / 2, i * out / 2, out / 2});
  adapter.a = numbers({experts, parts * rank, in});
  adapter.b = numbers({experts, parts * out / 2, rank});
  adapter.scale = 0.5;
  return adapter;
}
Adapter on_device(const Adapter& adapter) {
  return {adapter.parts, on_device(adapter.a), on_device(adapter.b), adapter.scale};
}
Adapter zeros_like(const Adapter& adapter) {
  if (!adapter.a.defined()) return {};
  const auto zeros = [](const at::Tensor& x) {
    return at::zeros(x.sizes(), x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  };
  return {adapter.parts, zeros(adapter.a), zeros(adapter.b), adapter.scale};
}

}  // namespace

TEST_CASE("cuda: products of all experts at once, with biases and adapters, equal those one by one" *
          doctest::skip(device == at::kCUDA && !at::hasCUDA())) {
  at::manual_seed(4);
  constexpr int64_t tokens = 50, experts = 7, in = 40, out = 48;
  at::Tensor chosen = at::rand({tokens, experts - 1}).argsort(1, false).narrow(1, 0, 3);
  chosen = chosen + (chosen >= 2).to(at::kLong);  // none chooses expert 2
  const GroupedRows groups = group_by_expert(chosen, experts);
  const GroupedRows on_gpu = group_by_expert(chosen.to(device), experts);
  REQUIRE(groups.begin()[2] == groups.begin()[3]);
  for (const int64_t parts : {0, 1, 2})
    for (const bool biased : {false, true}) {
      CAPTURE(parts);
      CAPTURE(biased);
      const at::Tensor x = numbers({3 * tokens, in}), grad = numbers({3 * tokens, out}),
                       stack = numbers({experts, out, in}),
                       biases = biased ? numbers({experts, out}) : at::Tensor();
      const Adapter adapter = parts > 0 ? adapter_of(experts, out, in, 8, parts) : Adapter{};
      const auto run = [&](const at::Tensor& rows, const at::Tensor& upstream, const at::Tensor& matrices,
                           const at::Tensor& added, const Adapter& own, const GroupedRows& divided) {
        const auto type = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
        const at::Tensor into = at::ones(matrices.sizes(), matrices.options().dtype(type)),
                         into_biases = biased ? at::ones(added.sizes(), added.options().dtype(type)) : added;
        const Adapter into_adapter = zeros_like(own);
        const at::Tensor y = grouped_forward(rows, matrices, added, own, divided);
        const at::Tensor at_x =
            grouped_backward(upstream, rows, matrices, own, divided, into, into_biases, into_adapter);
        std::vector<at::Tensor> all{y, at_x, into};
        if (biased) all.push_back(into_biases);
        if (own.a.defined()) all.insert(all.end(), {into_adapter.a, into_adapter.b});
        return all;
      };
      const Adapter adapter_there = on_device(adapter);
      REQUIRE(takes_grouped(on_device(x), on_device(stack), adapter_there));
      REQUIRE_FALSE(takes_grouped(x, stack, adapter));
      const auto exact = run(x, grad, stack, biases, adapter, groups),
                 near = run(on_device(x), on_device(grad), on_device(stack), on_device(biases), adapter_there,
                            on_gpu);
      REQUIRE(near.size() == exact.size());
      for (size_t i = 0; i < near.size(); ++i) {
        CAPTURE(i);
        CHECK(relative(near[i].cpu(), exact[i]) < 6e-3);
      }
      // An expert without rows has no gradient.
      CHECK(at::equal(near[2][2].cpu(), at::ones({out, in})));
    }
  const at::Tensor rows = numbers({3 * tokens, out}), vectors = numbers({experts, out});
  at::Tensor sums = at::zeros({experts, out}, at::kDouble), sums_there = at::zeros({experts, out}, device);
  add_grouped_sums(rows, groups, sums);
  add_grouped_sums(rows.to(at::kFloat).to(device), on_gpu, sums_there);
  CHECK(relative(sums_there.cpu(), sums) < 1e-6);
  at::Tensor dots = at::zeros({3 * tokens}, at::kDouble);
  groups.for_each([&](int64_t e, int64_t first, int64_t count) {
    dots.narrow(0, first, count).copy_(rows.narrow(0, first, count).mv(vectors[e]));
  });
  CHECK(relative(grouped_dot(rows, vectors, groups), dots) < 1e-12);
  CHECK(relative(grouped_dot(rows.to(at::kFloat).to(device), on_device(vectors), on_gpu).cpu(), dots) < 1e-6);
}

TEST_CASE("cuda: sizes that the grouped kernels do not support are computed expert by expert" *
          doctest::skip(device == at::kCUDA && !at::hasCUDA())) {
  const auto rounded = [](at::IntArrayRef sizes) { return on_device(at::randn(sizes)); };
  CHECK(takes_grouped(rounded({3, 16}), rounded({2, 24, 16}), {}));
  CHECK_FALSE(takes_grouped(rounded({3, 12}), rounded({2, 24, 12}), {}));
  CHECK_FALSE(takes_grouped(rounded({3, 16}), rounded({2, 20, 16}), {}));
  CHECK_FALSE(takes_grouped(rounded({3, 16}), rounded({2, 24, 17}).narrow(2, 0, 16), {}));
  CHECK_FALSE(
      takes_grouped(rounded({3, 16}), rounded({2 * 24 * 16 + 1}).narrow(0, 1, 768).view({2, 24, 16}), {}));
  CHECK_FALSE(takes_grouped(rounded({3, 8}), rounded({1024, 8, 8}), {}));
  CHECK(takes_grouped(rounded({3, 8}), rounded({1023, 8, 8}), {}));
  CHECK_FALSE(takes_grouped(rounded({3, 16}).to(at::kFloat), rounded({2, 24, 16}).to(at::kFloat), {}));
  CHECK_FALSE(takes_grouped(rounded({3, 16}), rounded({2, 24, 16}), on_device(adapter_of(2, 24, 16, 4, 2))));
  CHECK_FALSE(takes_grouped(rounded({3, 16}), rounded({2, 24, 16}),
                            on_device(adapter_of(2, 24, 16, 8, 2))));  // its second part begins at row 12
}
