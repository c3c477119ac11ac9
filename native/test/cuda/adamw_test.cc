// The AdamW step of cuda/adamw.h is bitwise equal to the CPU's loops, given the same norm.
#include "cuda/adamw.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/optim/kernels.h"
#include "test/cuda/device_memory.h"

using namespace nlac;
using namespace nlac::test;
using optim_kernels::Held;

namespace {

constexpr AdamWFactors factors{0, 0, 0.9f, 0.999f, 1e-2f, 1.5f, 1e-8f};  // without decay and clip

enum Part { w, m, v, g, compute, target, shadow, parts };
bool is_bf16(int part) { return part == compute || part == shadow; }

// Parameters with all their parts, on the device and on the host. A part starts `shift` elements
// into its memory, so that with shift 1 no vector is aligned. The element after the last must not
// change. Of three tensors one has no bf16 copy, one no EMA, and two have no shadow.
struct Parameters {
  struct Tensor {
    int64_t count;
    std::vector<uint8_t> here[parts];
    std::unique_ptr<OnDevice> there[parts];
    bool has(int part, size_t i) const {
      return !(part == compute && i % 3 == 0) && !(part == target && i % 3 == 1) &&
             !(part == shadow && i % 3 >= 1);
    }
  };
  std::vector<Tensor> tensors;
  std::vector<cuda::AdamWTensor> on_device;
  int64_t shift;

  Parameters(const std::vector<int64_t>& counts, int64_t shift) : shift(shift) {
    for (size_t i = 0; i < counts.size(); ++i) {
      Tensor& tensor = tensors.emplace_back();
      tensor.count = counts[i];
      for (int part = 0; part < parts; ++part) {
        std::vector<float> values = numbers(counts[i] + shift + 1, parts * i + static_cast<size_t>(part));
        if (part == v) {
          for (float& value : values) value *= value;
        }
        tensor.there[part] = std::make_unique<OnDevice>(values, is_bf16(part));
        tensor.here[part] = tensor.there[part]->values<uint8_t>();
      }
      const auto there = [&](int part) -> void* {
        return tensor.has(part, i) ? tensor.there[part]->as<uint8_t>() + offset(part) : nullptr;
      };
      const auto floats = [&](int part) { return static_cast<float*>(there(part)); };
      on_device.push_back({floats(w), floats(m), floats(v), floats(g), there(compute), floats(target),
                           there(shadow), counts[i], decay(i)});
    }
  }

  static float decay(size_t i) { return i % 2 == 0 ? 0.99f : 1; }
  int64_t offset(int part) const { return shift * (is_bf16(part) ? 2 : 4); }
  void* here(size_t i, int part) {
    return tensors[i].has(part, i) ? tensors[i].here[part].data() + offset(part) : nullptr;
  }
  float* floats(size_t i, int part) { return static_cast<float*>(here(i, part)); }

  double norm() {
    double sum = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const float* gradient = floats(i, g);
      for (int64_t e = 0; e < tensors[i].count; ++e) sum += static_cast<double>(gradient[e]) * gradient[e];
    }
    return std::sqrt(sum);
  }

  // Takes a step on the device; returns the gradient norm.
  double step_there(double max_grad_norm, float target_rate) {
    const auto count = static_cast<int64_t>(on_device.size());
    const int64_t size = cuda::adamw_workspace(on_device.data(), count);
    const OnDevice workspace(std::vector<double>(static_cast<size_t>(size), std::nan("")));
    REQUIRE(cuda::adamw_step(on_device.data(), count, factors, max_grad_norm, target_rate,
                             workspace.as<double>(), nullptr) == cudaSuccess);
    return workspace.values<double>()[0];
  }

  void step_here(float clip, float target_rate) {
    const auto& loops = optim_kernels::kernels();
    for (size_t i = 0; i < tensors.size(); ++i) {
      AdamWFactors own = factors;
      own.clip = clip;
      own.decay = decay(i);
      const int64_t count = tensors[i].count;
      loops.adamw(floats(i, w), floats(i, m), floats(i, v), floats(i, g), here(i, compute), Held::bf16, count,
                  own);
      if (here(i, target) != nullptr)
        loops.ema(floats(i, target), here(i, w), Held::f32, here(i, shadow), Held::bf16, count, target_rate);
    }
  }

  void require_same() const {
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (int part = 0; part < parts; ++part) {
        CAPTURE(i);
        CAPTURE(part);
        REQUIRE(tensors[i].there[part]->values<uint8_t>() == tensors[i].here[part]);
      }
    }
  }
};

// More tensors than a launch takes, with sizes around the vector width.
std::vector<int64_t> many_counts() {
  std::vector<int64_t> counts{19833, 8192, 8193, 0, 1, 7, 8, 40003};
  for (int64_t i = 0; i < 600; ++i) counts.push_back(i % 37 * 3);
  return counts;
}

}  // namespace

TEST_CASE("cuda: a step with its EMA is bitwise equal to the CPU's") {
  if (!has_device()) return;
  for (const int64_t shift : {0, 1}) {
    for (const double max_grad_norm : {0.0, 0.5, 1e6}) {
      CAPTURE(shift);
      CAPTURE(max_grad_norm);
      const float target_rate = max_grad_norm > 1 ? 0.7f : 0.005f;  // counted from either end
      Parameters parameters(many_counts(), shift);
      const double expected = parameters.norm(), norm = parameters.step_there(max_grad_norm, target_rate);
      REQUIRE(norm == doctest::Approx(expected).epsilon(1e-12));
      const double clip = max_grad_norm > 0 ? std::min(1.0, max_grad_norm / (norm + 1e-6)) : 1;
      parameters.step_here(static_cast<float>(clip), target_rate);
      parameters.require_same();
    }
  }
}

TEST_CASE("cuda: a non-finite gradient only resets the gradients to 0") {
  if (!has_device()) return;
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    for (const int64_t shift : {0, 1}) {
      Parameters parameters({9000, 5, 8193}, shift);
      float* const last = parameters.on_device[2].g + 8192;
      REQUIRE(cudaMemcpy(last, &bad, sizeof(bad), cudaMemcpyHostToDevice) == cudaSuccess);
      CHECK_FALSE(std::isfinite(parameters.step_there(1, 0.5f)));
      for (size_t i = 0; i < 3; ++i) std::fill_n(parameters.floats(i, g), parameters.tensors[i].count, 0.0f);
      parameters.require_same();
    }
  }
}

TEST_CASE("cuda: gradients whose squares overflow float32 have a norm, and no gradients have norm 0") {
  if (!has_device()) return;
  Parameters parameters({6}, 0);
  const std::vector<float> large(6, 1e30f);
  REQUIRE(cudaMemcpy(parameters.on_device[0].g, large.data(), 24, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(parameters.step_there(1, 0) == doctest::Approx(1e30 * std::sqrt(6.0)).epsilon(1e-6));
  CHECK(Parameters({}, 0).step_there(1, 0) == 0);
  CHECK(Parameters({0}, 0).step_there(1, 0) == 0);
  for (const float target_rate : {-0.1f, 1.1f, std::nanf("")})
    CHECK(cuda::adamw_step(nullptr, 0, factors, 1, target_rate, nullptr, nullptr) == cudaErrorInvalidValue);
}
