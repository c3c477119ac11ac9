// Arrays in GPU memory, for tests of kernels that do not use torch.
#pragma once

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "core/random.h"

namespace nlac::test {

// Without a device, a case does nothing and passes, unless NLAC_TEST_DEVICE asks for one, as
// scripts/gpu-check.sh does.
inline bool has_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  const bool found = status == cudaSuccess && count > 0;
  if (found) return true;
  const char* const wanted = std::getenv("NLAC_TEST_DEVICE");
  REQUIRE_MESSAGE((wanted == nullptr || std::strcmp(wanted, "cuda") != 0),
                  "no CUDA device: ", cudaGetErrorString(status));
  MESSAGE("skipped: no CUDA device");
  return false;
}

inline float widened(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
inline uint16_t bf16_of(float value) {  // finite ones
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// A copy of `values` on the device, in their type or in bf16. Freed by the destructor.
class OnDevice {
 public:
  template <typename T>
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.data(), values.size() * sizeof(T)) {}
  OnDevice(const std::vector<float>& values, bool is_bf16) : OnDevice(held(values, is_bf16)) {
    bf16_ = is_bf16;
  }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(memory_); }

  void* data() const { return memory_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  // Copies the values back; waits for the device.
  template <typename T>
  std::vector<T> values() const {
    std::vector<T> values(bytes_ / sizeof(T));
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(values.data(), memory_, bytes_, cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }
  // The same, as floats.
  std::vector<float> floats() const {
    if (!bf16_) return values<float>();
    std::vector<float> wide;
    for (const uint16_t bits : values<uint16_t>()) wide.push_back(widened(bits));
    return wide;
  }

 private:
  OnDevice(const void* values, size_t bytes) : bytes_(bytes) {
    REQUIRE(cudaMalloc(&memory_, bytes == 0 ? 1 : bytes) == cudaSuccess);
    REQUIRE(cudaMemcpy(memory_, values, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  static std::vector<uint8_t> held(const std::vector<float>& values, bool is_bf16) {
    std::vector<uint8_t> bytes(values.size() * (is_bf16 ? 2 : 4));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = bf16_of(values[i]);
      if (is_bf16) {
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
      } else {
        std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      }
    }
    return bytes;
  }

  void* memory_ = nullptr;
  size_t bytes_;
  bool bf16_ = false;
};

// Uniform in [-scale, scale), exactly representable in bf16.
inline std::vector<float> numbers(int64_t count, uint64_t stream, float scale = 1) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = widened(bf16_of((static_cast<float>(philox(7, stream, i)[0]) * 0x1p-31f - 1) * scale));
  return values;
}

// |got - expected| if it exceeds the given number of roundings to the type, relative to the larger
// of |expected| and 1; else 0. Infinite for NaN.
inline double excess(double got, double expected, bool is_bf16, int roundings = 1) {
  const double unit = is_bf16 ? 0x1p-8 : 2e-6;
  const double difference = std::abs(got - expected);
  if (difference <= roundings * unit * std::max(std::abs(expected), 1.0)) return 0;
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

}  // namespace nlac::test
