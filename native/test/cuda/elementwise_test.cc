// The elementwise kernels of a layer on a GPU, against naive loops in float64.
#include "cuda/elementwise.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "test/cuda/device_memory.h"

using namespace nlac;
using namespace nlac::test;

TEST_CASE("cuda: rows are added to the residual stream and normalized") {
  if (!has_device()) return;
  constexpr double eps = 1e-5;
  for (const int64_t rows : {1, 5}) {
    for (const int64_t n : {1, 7, 64, 576, 1037, 3584}) {
      for (const bool is_bf16 : {false, true}) {
        for (const bool adds : {false, true}) {
          CAPTURE(rows);
          CAPTURE(n);
          CAPTURE(is_bf16);
          CAPTURE(adds);
          std::vector<float> x = numbers(rows * n, 1, 4);
          const std::vector<float> added = numbers(rows * n, 2), weight = numbers(n, 3, 2);
          for (float& value : x) value += 0x1p-18f;  // more than bf16 holds
          const OnDevice on_x(x), on_added(added, is_bf16), on_weight(weight, is_bf16),
              normed(std::vector<float>(x.size(), 99), is_bf16);
          REQUIRE(cuda::add_rms_norm({on_x.as<float>(), adds ? on_added.data() : nullptr, on_weight.data(),
                                      normed.data(), rows, n, static_cast<float>(eps), is_bf16},
                                     nullptr) == cudaSuccess);
          if (adds)
            for (size_t i = 0; i < x.size(); ++i) x[i] += added[i];
          CHECK(on_x.floats() == x);
          const std::vector<float> got = normed.floats();
          double worst = 0;
          for (int64_t row = 0; row < rows; ++row) {
            double squares = 0;
            for (int64_t i = 0; i < n; ++i) squares += double{x[row * n + i]} * x[row * n + i];
            const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
            for (int64_t i = 0; i < n; ++i) {
              const double expected = x[row * n + i] * scale * weight[i];
              worst = std::max(worst, excess(got[row * n + i], expected, is_bf16, 2));
            }
          }
          CHECK(worst == 0);
        }
      }
    }
  }
}

TEST_CASE("cuda: a gated activation is rounded once, and finite where the exponential overflows") {
  if (!has_device()) return;
  for (const int64_t rows : {1, 3}) {
    for (const int64_t n : {1, 9, 64, 1536, 2051}) {
      for (const bool is_bf16 : {false, true}) {
        CAPTURE(rows);
        CAPTURE(n);
        CAPTURE(is_bf16);
        std::vector<float> gate_up = numbers(rows * 2 * n, 1, 6);
        gate_up[0] = -200;
        const OnDevice on_gate_up(gate_up, is_bf16),
            y(std::vector<float>(static_cast<size_t>(rows * n), 99), is_bf16);
        REQUIRE(cuda::gated_silu(on_gate_up.data(), rows, n, y.data(), is_bf16, nullptr) == cudaSuccess);
        const std::vector<float> got = y.floats();
        double worst = 0;
        for (int64_t i = 0; i < rows * n; ++i) {
          const double gate = gate_up[i / n * 2 * n + i % n], up = gate_up[i / n * 2 * n + n + i % n];
          worst = std::max(worst, excess(got[i], gate / (1 + std::exp(-gate)) * up, is_bf16));
        }
        CHECK(worst == 0);
      }
    }
  }
}

TEST_CASE("cuda: no rows need no work") {
  CHECK(cuda::add_rms_norm({nullptr, nullptr, nullptr, nullptr, 0, 8, 0, true}, nullptr) == cudaSuccess);
  CHECK(cuda::gated_silu(nullptr, 0, 8, nullptr, true, nullptr) == cudaSuccess);
  CHECK(cuda::gated_silu(nullptr, 1, 0, nullptr, true, nullptr) == cudaErrorInvalidValue);
}
