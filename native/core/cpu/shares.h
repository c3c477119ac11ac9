// How work is split between CPU threads. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nlac::cpu {

// Returns the number of parts of at most `size` in n.
inline int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Returns how many tasks of `work` multiplications justify waking a thread.
inline int64_t grain(int64_t work) {
  return std::max<int64_t>(1, (int64_t{1} << 18) / std::max<int64_t>(1, work));
}
// The same for passes over rows of n elements, which wait for memory and cost more.
inline int64_t row_grain(int64_t n) { return grain(16 * n); }

}  // namespace nlac::cpu
