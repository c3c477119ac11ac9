// RMS normalisation on a GPU and its gradients, against naive loops in float64.
#include "cuda/rms_norm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "test/cuda/device_memory.h"

using namespace nlac;
using namespace nlac::test;

namespace {

constexpr double eps = 1e-5;

struct Shape {
  int64_t tokens, heads, n;
  int64_t gap;  // elements between two heads, and between two tokens

  int64_t of_head() const { return n + gap; }
  int64_t of_token() const { return heads * of_head() + gap; }
  int64_t rows() const { return tokens * heads; }
  int64_t place(int64_t row) const { return row / heads * of_token() + row % heads * of_head(); }
  cuda::Heads heads_of(const OnDevice& memory) const { return {memory.data(), of_token(), of_head()}; }
};

// Calls `check` with every combination of shape, kind of weight and type.
void for_shapes(const auto& check) {
  for (const Shape& shape :
       {Shape{1, 1, 1, 0}, Shape{3, 1, 7, 0}, Shape{5, 3, 64, 0}, Shape{2, 9, 128, 8}, Shape{3, 2, 100, 4},
        Shape{40, 1, 576, 0}, Shape{2, 1, 1037, 3}, Shape{3, 1, 3584, 0}})
    for (const bool plus_one : {false, true})
      for (const bool is_bf16 : {false, true}) {
        CAPTURE(shape.tokens);
        CAPTURE(shape.n);
        CAPTURE(plus_one);
        CAPTURE(is_bf16);
        check(shape, plus_one, is_bf16);
      }
}

cuda::RmsNorm norm_of(const Shape& shape, const OnDevice& weight, bool plus_one, bool is_bf16) {
  return {shape.tokens, shape.heads, shape.n, weight.data(), static_cast<float>(eps), plus_one, is_bf16};
}

double scale_of(const float* row, int64_t n) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += double{row[i]} * row[i];
  return 1 / std::sqrt(squares / static_cast<double>(n) + eps);
}

}  // namespace

TEST_CASE("cuda: heads are normalised, and nothing between them is written") {
  if (!has_device()) return;
  for_shapes([](const Shape& shape, bool plus_one, bool is_bf16) {
    for (const bool x_is_f32 : {false, true}) {
      CAPTURE(x_is_f32);
      std::vector<float> x = numbers(shape.tokens * shape.of_token(), 1, 4);
      if (x_is_f32)
        for (float& value : x) value += 0x1p-18f;  // more than bf16 holds
      const std::vector<float> weight = numbers(shape.n, 2, 2);
      const OnDevice on_x(x, is_bf16 && !x_is_f32), on_weight(weight, is_bf16),
          y(std::vector<float>(x.size(), 99), is_bf16);
      REQUIRE(cuda::rms_norm(norm_of(shape, on_weight, plus_one, is_bf16), shape.heads_of(on_x), x_is_f32,
                             shape.heads_of(y), nullptr) == cudaSuccess);
      std::vector<double> expected(x.size(), 99);
      for (int64_t row = 0; row < shape.rows(); ++row) {
        const int64_t at = shape.place(row);
        const double scale = scale_of(x.data() + at, shape.n);
        for (int64_t i = 0; i < shape.n; ++i)
          expected[at + i] = x[at + i] * scale * (weight[i] + (plus_one ? 1 : 0));
      }
      const std::vector<float> got = y.floats();
      double worst = 0;
      for (size_t i = 0; i < got.size(); ++i)
        worst = std::max(worst, excess(got[i], expected[i], is_bf16, plus_one ? 1 : 2));
      CHECK(worst == 0);
    }
  });
}

TEST_CASE("cuda: the gradients of a normalisation") {
  if (!has_device()) return;
  for_shapes([](const Shape& shape, bool plus_one, bool is_bf16) {
    const int64_t n = shape.n, rows = shape.rows();
    const std::vector<float> x = numbers(shape.tokens * shape.of_token(), 1, 4),
                             grad = numbers(shape.tokens * shape.of_token(), 2), weight = numbers(n, 3, 2),
                             residual = numbers(rows * n, 4);
    const OnDevice on_x(x, is_bf16), on_grad(grad, is_bf16), on_weight(weight, is_bf16),
        on_residual(residual, is_bf16), scales(std::vector<float>(static_cast<size_t>(rows), 99));
    const cuda::RmsNorm norm = norm_of(shape, on_weight, plus_one, is_bf16);
    std::vector<double> at_x(static_cast<size_t>(rows * n)), at_weight(static_cast<size_t>(n));
    std::vector<double> terms(static_cast<size_t>(n));  // Σ |term| of each sum
    for (int64_t row = 0; row < rows; ++row) {
      const float *own = x.data() + shape.place(row), *upstream = grad.data() + shape.place(row);
      const double scale = scale_of(own, n);
      double along = 0;
      const auto direct = [&](int64_t i) { return double{upstream[i]} * (weight[i] + (plus_one ? 1 : 0)); };
      for (int64_t i = 0; i < n; ++i) along += direct(i) * own[i] * scale / static_cast<double>(n);
      for (int64_t i = 0; i < n; ++i) {
        at_x[row * n + i] = (direct(i) - own[i] * scale * along) * scale;
        at_weight[i] += upstream[i] * own[i] * scale;
        terms[i] += std::abs(upstream[i] * own[i] * scale);
      }
    }
    for (const bool adds : {false, true}) {
      CAPTURE(adds);
      const OnDevice result(std::vector<float>(residual.size(), 99), is_bf16);
      REQUIRE(cuda::rms_norm_backward(
                  norm,
                  {shape.heads_of(on_grad), shape.heads_of(on_x), adds ? on_residual.data() : nullptr,
                   result.data(), adds ? scales.as<float>() : nullptr},
                  nullptr) == cudaSuccess);
      const std::vector<float> got = result.floats();
      double worst = 0;
      for (size_t i = 0; i < got.size(); ++i)
        worst = std::max(worst, excess(got[i], at_x[i] + (adds ? residual[i] : 0), is_bf16, is_bf16 ? 1 : 8));
      CHECK(worst == 0);
    }
    const int64_t count = cuda::weight_parts(norm);
    const OnDevice parts(std::vector<float>(static_cast<size_t>(count * n), 99));
    REQUIRE(cuda::rms_norm_weight_gradient(norm, shape.heads_of(on_grad), shape.heads_of(on_x),
                                           scales.as<float>(), parts.as<float>(), nullptr) == cudaSuccess);
    const std::vector<float> got = parts.floats();
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t part = 0; part < count; ++part) sum += got[part * n + i];
      worst = std::max(worst, std::abs(sum - at_weight[i]) / std::max(terms[i], 1.0));
    }
    CHECK(worst < 2e-6);
  });
}

TEST_CASE("cuda: normalisation of no tokens needs no work, and impossible shapes are refused") {
  const cuda::Heads none{};
  CHECK(cuda::rms_norm({0, 1, 8, nullptr, 0, false, true}, none, false, none, nullptr) == cudaSuccess);
  CHECK(cuda::rms_norm({1, 1, 0, nullptr, 0, false, true}, none, false, none, nullptr) ==
        cudaErrorInvalidValue);
  CHECK(cuda::rms_norm_backward({1, 0, 8, nullptr, 0, false, true}, {}, nullptr) == cudaErrorInvalidValue);
}
