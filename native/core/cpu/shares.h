// How work on the CPU is cut: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nlac::cpu {

// Parts of at most `size` that make up n.
inline int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Of tasks of so many multiplications each, those that are worth waking a thread for.
inline int64_t grain(int64_t work) {
  return std::max<int64_t>(1, (int64_t{1} << 18) / std::max<int64_t>(1, work));
}
// Of passes over rows of n elements, which wait for memory and cost more each.
inline int64_t row_grain(int64_t n) { return grain(16 * n); }

}  // namespace nlac::cpu
