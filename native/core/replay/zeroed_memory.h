// A large zeroed array that uses memory only where it was touched. Page aligned, in huge pages if
// available (fewer TLB misses in a descent). Movable, not copyable.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/platform.h"

namespace nlac {

template <typename T>
class ZeroedMemory {
  static_assert(std::is_trivial_v<T>);

 public:
  ZeroedMemory() = default;
  explicit ZeroedMemory(int64_t count) : count_(count) {
    void* memory =
        ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NLAC_REQUIRE(memory != MAP_FAILED, "ERR_OUT_OF_MEMORY", "cannot reserve ", bytes(), " bytes");
    data_ = static_cast<T*>(memory);
    if (bytes() >= size_t{2} << 20) platform::prefer_huge_pages(memory, bytes());
  }
  ~ZeroedMemory() {
    if (data_ != nullptr) ::munmap(data_, bytes());
  }
  ZeroedMemory(ZeroedMemory&& other) noexcept { swap(other); }
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  size_t bytes() const { return static_cast<size_t>(count_) * sizeof(T); }
  void swap(ZeroedMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }
  T* data_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace nlac
