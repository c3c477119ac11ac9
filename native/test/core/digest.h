// A digest of results that have the same bits on every processor. Tests compare it with one
// that was recorded on x86-64.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

namespace nlac::test {

// FNV-1a over the bytes in little-endian order.
class Digest {
 public:
  template <typename T>
  void add(const T* numbers, size_t count) {
    static_assert(std::is_arithmetic_v<T>);
    const auto* bytes = reinterpret_cast<const unsigned char*>(numbers);
    for (size_t i = 0; i < count * sizeof(T); ++i) value_ = (value_ ^ bytes[i]) * 0x100000001B3u;
  }
  template <typename T>
  void add(const std::vector<T>& numbers) {
    add(numbers.data(), numbers.size());
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325u;
};

}  // namespace nlac::test
