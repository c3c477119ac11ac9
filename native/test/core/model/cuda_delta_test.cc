// Steps of gated delta nets by a GPU's kernels against float64. test_cuda_inference runs them on the CPU.
#include "core/model/cuda_delta.h"

#include <doctest/doctest.h>

#include "core/model/kv_store.h"  // NLAC_KERNEL_DEVICE
#include "test/core/model/kernels_reference.h"

using namespace kernels_test;
using namespace nlac;

namespace {

constexpr at::DeviceType device = NLAC_KERNEL_DEVICE;
const std::vector<int64_t> lengths{130, 1, 2, 64, 3};
constexpr int64_t tokens = 200;

struct Net {
  GatedDeltaShape shape;
  GatedDeltaWeights weights;
  at::Tensor projected;  // [tokens, projected]

  Net(const GatedDeltaShape& given, at::ScalarType type) : shape(given) {
    at::manual_seed(6);
    weights = {at::randn({shape.channels(), shape.kernel}).mul_(0.5), at::randn({shape.heads}),
               at::randn({shape.heads}), at::randn({shape.value_dim}).mul_(0.2).add_(1)};
    // Rows of a wider tensor, as they may lie in memory.
    const at::Tensor wide = at::randn({tokens, shape.projected() + 3});
    projected = wide.to(type).to(device).narrow(1, 3, shape.projected());
    for (at::Tensor* weight : {&weights.convolution, &weights.decay_log, &weights.decay_bias, &weights.norm})
      *weight = weight->to(type).to(device);
  }
  // The same in float64 on the CPU.
  GatedDeltaWeights exact_weights() const {
    const auto exact = [](const at::Tensor& x) { return x.cpu().to(at::kDouble); };
    return {exact(weights.convolution), exact(weights.decay_log), exact(weights.decay_bias),
            exact(weights.norm)};
  }
  DeltaState state() const { return DeltaState::zeros(shape, at::kFloat, device); }
};

}  // namespace

TEST_CASE("cuda: steps of a gated delta net equal float64, for texts begun before and beside others" *
          doctest::skip(device == at::kCUDA && !at::hasCUDA())) {
  for (const GatedDeltaShape& shape : {GatedDeltaShape{2, 4, 32, 40, 4},
                                       {1, 1, 8, 33, 2},
                                       {2, 2, 128, 128, 4},
                                       {1, 2, 256, 16, 3},
                                       {3, 3, 16, 1, 4},
                                       {1, 3, 64, 64, 4}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      CAPTURE(shape.key_dim);
      CAPTURE(shape.value_dim);
      CAPTURE(std::string(c10::toString(type)));
      const Net net(shape, type);
      REQUIRE(gpu::takes_delta(shape, net.weights, net.projected));
      const GatedDelta exact =
          gated_delta(shape, net.exact_weights(), net.projected.cpu().to(at::kDouble), lengths);

      // All texts at once.
      std::vector<DeltaSlice> slices;
      for (const int64_t length : lengths) slices.push_back({length, net.state()});
      const at::Tensor whole = gpu::delta_steps(shape, net.weights, net.projected, slices);
      CHECK(relative(whole.cpu(), exact.output) < (type == at::kFloat ? 3e-6 : 4e-3));

      // A part of each by itself, then the rest of all: the same bits.
      std::vector<DeltaSlice> again;
      std::vector<at::Tensor> rest, expected;
      int64_t start = 0;
      for (size_t i = 0; i < lengths.size(); start += lengths[i], ++i) {
        const int64_t before = lengths[i] / 3;
        const DeltaState state = net.state();
        if (before > 0) {
          const at::Tensor rows = net.projected.narrow(0, start, before);
          CHECK(at::equal(gpu::delta_steps(shape, net.weights, rows, {{before, state}}),
                          whole.narrow(0, start, before)));
        }
        again.push_back({lengths[i] - before, state});
        rest.push_back(net.projected.narrow(0, start + before, lengths[i] - before));
        expected.push_back(whole.narrow(0, start + before, lengths[i] - before));
        CHECK(relative(slices[i].state.recurrent.cpu(), exact.rule.last[i]) < 3e-6);
      }
      CHECK(at::equal(gpu::delta_steps(shape, net.weights, at::cat(rest), again), at::cat(expected)));
      for (size_t i = 0; i < again.size(); ++i) {
        CHECK(at::equal(again[i].state.recurrent, slices[i].state.recurrent));
        CHECK(at::equal(again[i].state.inputs, slices[i].state.inputs));
      }
      // The convolution's last inputs are the projections themselves.
      const at::Tensor last =
          net.projected.narrow(0, 130 - shape.kernel + 1, shape.kernel - 1).narrow(1, 0, shape.channels());
      CHECK(at::equal(slices[0].state.inputs, last.to(at::kFloat)));
    }
}

TEST_CASE("cuda: shapes of gated delta nets that the kernels do not support are refused" *
          doctest::skip(device == at::kCUDA && !at::hasCUDA())) {
  for (const GatedDeltaShape& shape :
       {GatedDeltaShape{1, 2, 24, 16, 4}, {1, 2, 512, 16, 4}, {1, 2, 16, 16, 5}, {1, 2, 16, 16, 1}}) {
    const Net net(shape, at::kFloat);
    CHECK_FALSE(gpu::takes_delta(shape, net.weights, net.projected));
  }
  Net net({1, 2, 16, 16, 4}, at::kFloat);
  CHECK(gpu::takes_delta(net.shape, net.weights, net.projected));
  CHECK_FALSE(gpu::takes_delta(net.shape, net.weights, net.projected.to(at::kBFloat16)));
  net.weights.norm = net.weights.norm.to(at::kDouble);
  CHECK_FALSE(gpu::takes_delta(net.shape, net.weights, net.projected));
}
