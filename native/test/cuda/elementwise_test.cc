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

namespace {

// An activation of a gate and its derivative, in float64.
struct Activated {
  double value, slope;
};
Activated activated(cuda::Gate gate, double x) {
  if (gate == cuda::Gate::silu) {
    const double share = 1 / (1 + std::exp(-x));
    return {x * share, share + x * share * (1 - share)};
  }
  const double scale = std::sqrt(2 / M_PI), t = std::tanh(scale * (x + 0.044715 * x * x * x));
  return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x)};
}

// Calls `check` with every combination of activation, rows, elements and type.
void for_gates(const auto& check) {
  for (const cuda::Gate gate : {cuda::Gate::silu, cuda::Gate::gelu})
    for (const int64_t rows : {1, 3})
      for (const int64_t n : {1, 9, 64, 1536, 2051})
        for (const bool is_bf16 : {false, true}) {
          CAPTURE(gate == cuda::Gate::silu);
          CAPTURE(rows);
          CAPTURE(n);
          CAPTURE(is_bf16);
          check(gate, rows, n, is_bf16);
        }
}

}  // namespace

TEST_CASE("cuda: a gated activation is rounded once, and finite where the exponential overflows") {
  if (!has_device()) return;
  for_gates([](cuda::Gate gate, int64_t rows, int64_t n, bool is_bf16) {
    std::vector<float> gate_up = numbers(rows * 2 * n, 1, 6);
    gate_up[0] = -200;
    const OnDevice on_gate_up(gate_up, is_bf16),
        y(std::vector<float>(static_cast<size_t>(rows * n), 99), is_bf16);
    REQUIRE(cuda::gated(gate, on_gate_up.data(), rows, n, y.data(), is_bf16, nullptr) == cudaSuccess);
    const std::vector<float> got = y.floats();
    double worst = 0;
    for (int64_t i = 0; i < rows * n; ++i) {
      const double x = gate_up[i / n * 2 * n + i % n], up = gate_up[i / n * 2 * n + n + i % n];
      worst = std::max(worst, excess(got[i], activated(gate, x).value * up, is_bf16));
    }
    CHECK(worst == 0);
  });
}

TEST_CASE("cuda: the gradient of a gated activation") {
  if (!has_device()) return;
  for_gates([](cuda::Gate gate, int64_t rows, int64_t n, bool is_bf16) {
    std::vector<float> gate_up = numbers(rows * 2 * n, 1, 6);
    gate_up[0] = -200;
    const std::vector<float> grad = numbers(rows * n, 2);
    const OnDevice on_grad(grad, is_bf16), on_gate_up(gate_up, is_bf16),
        result(std::vector<float>(gate_up.size(), 99), is_bf16);
    REQUIRE(cuda::gated_backward(gate, on_grad.data(), on_gate_up.data(), rows, n, result.data(), is_bf16,
                                 nullptr) == cudaSuccess);
    const std::vector<float> got = result.floats();
    double worst = 0;
    for (int64_t i = 0; i < rows * n; ++i) {
      const int64_t at = i / n * 2 * n + i % n;
      const Activated own = activated(gate, gate_up[at]);
      worst = std::max({worst, excess(got[at], grad[i] * gate_up[at + n] * own.slope, is_bf16, 4),
                        excess(got[at + n], grad[i] * own.value, is_bf16, 2)});
    }
    CHECK(worst == 0);
  });
}

TEST_CASE("cuda: heads are rotated in place, and back") {
  if (!has_device()) return;
  struct Shape {
    int64_t tokens, heads, width, half;  // width: elements from one head to the next
  };
  constexpr int64_t positions = 11;
  for (const Shape& shape :
       {Shape{1, 1, 2, 1}, Shape{3, 4, 64, 32}, Shape{5, 12, 40, 9}, Shape{2, 9, 256, 64}}) {
    for (const bool is_bf16 : {false, true}) {
      CAPTURE(shape.tokens);
      CAPTURE(shape.width);
      CAPTURE(is_bf16);
      const int64_t of_token = shape.heads * shape.width + 8;  // further elements, not rotated
      const std::vector<float> x = numbers(shape.tokens * of_token, 1, 4);
      const std::vector<float> cos = numbers(positions * shape.half, 2),
                               sin = numbers(positions * shape.half, 3);
      std::vector<int64_t> at(static_cast<size_t>(shape.tokens));
      for (size_t t = 0; t < at.size(); ++t) at[t] = static_cast<int64_t>(7 * t + 2) % positions;
      const OnDevice on_x(x, is_bf16), on_cos(cos), on_sin(sin), on_positions(at);
      for (const float sign : {1.0f, -1.0f}) {
        CAPTURE(sign);
        const std::vector<float> before = on_x.floats();
        REQUIRE(
            cuda::rotate({on_x.data(), shape.tokens, shape.heads, of_token, shape.width, shape.half,
                          on_cos.as<float>(), on_sin.as<float>(), on_positions.as<int64_t>(), sign, is_bf16},
                         nullptr) == cudaSuccess);
        const std::vector<float> got = on_x.floats();
        double worst = 0;
        for (int64_t t = 0; t < shape.tokens; ++t) {
          for (int64_t i = 0; i < of_token; ++i) {
            const int64_t place = t * of_token + i, in_head = i % shape.width;
            double expected = before[place];
            if (i < shape.heads * shape.width && in_head < 2 * shape.half) {
              const int64_t pair = in_head % shape.half, turn = at[t] * shape.half + pair;
              const int64_t low = place - in_head + pair, high = low + shape.half;
              const double c = cos[turn], s = sign * sin[turn];
              expected = in_head < shape.half ? before[low] * c - before[high] * s
                                              : before[high] * c + before[low] * s;
            }
            worst = std::max(worst, excess(got[place], expected, is_bf16, 2));
          }
        }
        CHECK(worst == 0);
      }
    }
  }
}

TEST_CASE("cuda: no rows need no work") {
  CHECK(cuda::add_rms_norm({nullptr, nullptr, nullptr, nullptr, 0, 8, 0, true}, nullptr) == cudaSuccess);
  CHECK(cuda::gated(cuda::Gate::silu, nullptr, 0, 8, nullptr, true, nullptr) == cudaSuccess);
  CHECK(cuda::gated(cuda::Gate::silu, nullptr, 1, 0, nullptr, true, nullptr) == cudaErrorInvalidValue);
  CHECK(cuda::rotate({nullptr, 0, 1, 2, 2, 1, nullptr, nullptr, nullptr, 1, true}, nullptr) == cudaSuccess);
  CHECK(cuda::rotate({nullptr, 1, 1, 2, 2, 0, nullptr, nullptr, nullptr, 1, true}, nullptr) ==
        cudaErrorInvalidValue);
}
