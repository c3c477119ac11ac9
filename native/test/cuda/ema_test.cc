// The EMA of cuda/ema.h is bitwise equal to the CPU's loops.
#include "cuda/ema.h"

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

constexpr Rounding rounding{77, 5};

// A tensor on the device and a copy on the host. They start `shift` elements into their memory, so
// that with shift 1 no vector is aligned. The element after the last must not change.
class Twins {
 public:
  Twins(const std::vector<float>& values, bool is_bf16, int64_t shift)
      : width_(is_bf16 ? 2 : 4), shift_(shift) {
    std::vector<float> padded(static_cast<size_t>(shift), 3);
    padded.insert(padded.end(), values.begin(), values.end());
    padded.push_back(3);
    there_ = std::make_unique<OnDevice>(padded, is_bf16);
    here_ = there_->values<uint8_t>();
  }
  void* here() { return here_.data() + shift_ * width_; }
  void* there() const { return there_->as<uint8_t>() + shift_ * width_; }
  bool same() const { return there_->values<uint8_t>() == here_; }

 private:
  int64_t width_, shift_;
  std::unique_ptr<OnDevice> there_;
  std::vector<uint8_t> here_;
};

// The result for a bf16 target of zeros.
std::vector<float> averaged(const std::vector<float>& online, float target_rate) {
  const OnDevice target(std::vector<float>(online.size()), true), there(online);
  const cuda::EmaTensor tensor{target.data(), there.data(), nullptr, static_cast<int64_t>(online.size()), 0,
                               true,          false};
  REQUIRE(cuda::ema_update(&tensor, 1, target_rate, rounding, nullptr) == cudaSuccess);
  return target.floats();
}

Held held(bool is_bf16) { return is_bf16 ? Held::bf16 : Held::f32; }

}  // namespace

TEST_CASE("cuda: an EMA of any mix of types is bitwise equal to the CPU's") {
  if (!has_device()) return;
  // More tensors than a launch takes, with sizes around the vector width.
  std::vector<int64_t> counts{19833, 8192, 8193, 0, 1, 7, 8, 40003};
  for (int64_t i = 0; i < 700; ++i) counts.push_back(i % 37 * 3);
  for (const float target_rate : {0.0f, 0.005f, 0.7f, 1.0f}) {
    for (const int64_t shift : {0, 1}) {
      CAPTURE(target_rate);
      CAPTURE(shift);
      std::vector<Twins> targets, online, shadows;
      std::vector<cuda::EmaTensor> tensors;
      uint64_t counter = 3;
      for (size_t i = 0; i < counts.size(); ++i) {
        const bool target_is_bf16 = i % 4 >= 2, online_is_bf16 = i % 2 == 1, shadowed = i % 3 == 0;
        const int64_t count = counts[i];
        targets.emplace_back(numbers(count, 2 * i), target_is_bf16, shift);
        online.emplace_back(numbers(count, 2 * i + 1), online_is_bf16, shift);
        shadows.emplace_back(numbers(count, 2 * i), true, shift);
        void* shadow = shadowed && !target_is_bf16 ? shadows.back().there() : nullptr;
        tensors.push_back({targets.back().there(), online.back().there(), shadow, count, counter,
                           target_is_bf16, online_is_bf16});
        const auto& loops = optim_kernels::kernels();
        if (target_is_bf16) {
          loops.ema_rounded(static_cast<uint16_t*>(targets.back().here()), online.back().here(),
                            held(online_is_bf16), count, target_rate, rounding, counter);
        } else {
          loops.ema(static_cast<float*>(targets.back().here()), online.back().here(), held(online_is_bf16),
                    shadow == nullptr ? nullptr : shadows.back().here(), Held::bf16, count, target_rate);
        }
        counter += static_cast<uint64_t>(count + 7) / 8;
      }
      REQUIRE(cuda::ema_update(tensors.data(), static_cast<int64_t>(tensors.size()), target_rate, rounding,
                               nullptr) == cudaSuccess);
      for (size_t i = 0; i < counts.size(); ++i) {
        CAPTURE(i);
        REQUIRE(targets[i].same());
        REQUIRE(online[i].same());
        REQUIRE(shadows[i].same());
      }
    }
  }
}

TEST_CASE("cuda: stochastic rounding is unbiased") {
  if (!has_device()) return;
  const std::vector<float> got = averaged(std::vector<float>(20001, 1 + 0.3f * 0x1p-7f), 1);
  const auto up = std::count(got.begin(), got.end(), 1 + 0x1p-7f);
  CHECK(up + std::count(got.begin(), got.end(), 1.0f) == 20001);
  CHECK(static_cast<double>(up) / 20001 == doctest::Approx(0.3).epsilon(0.05));
}

TEST_CASE("cuda: stochastic rounding keeps non-finite values") {
  if (!has_device()) return;
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> got = averaged({infinity, -infinity, std::nanf(""), 0}, 0.25f);
  CHECK(got[0] == infinity);
  CHECK(got[1] == -infinity);
  CHECK(std::isnan(got[2]));
  CHECK(got[3] == 0);
}

TEST_CASE("cuda: an EMA rejects a target rate outside of [0, 1] and accepts an empty list") {
  if (!has_device()) return;
  for (const float target_rate : {-0.1f, 1.1f, std::nanf("")})
    CHECK(cuda::ema_update(nullptr, 0, target_rate, rounding, nullptr) == cudaErrorInvalidValue);
  CHECK(cuda::ema_update(nullptr, 0, 0.5f, rounding, nullptr) == cudaSuccess);
}
