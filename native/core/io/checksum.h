// A checksum against damage and mix-ups, not against forgery. No torch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nlac {

// Each step maps both the state and the word one to one, so a change confined to one word is always
// seen; other damage passes with a chance of 2^-64.
class Checksum {
 public:
  // The last eight bytes are padded with zeros.
  void add(const void* data, size_t bytes) {
    const char* at = static_cast<const char*>(data);
    for (size_t i = 0; i < bytes; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, at + i, std::min<size_t>(8, bytes - i));
      add(word);
    }
  }
  void add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15u;
    state_ ^= state_ >> 32;
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x6E6C616374726565u;
};

}  // namespace nlac
