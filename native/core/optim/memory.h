// The memory of tensors, and whether the tensors of a call share some.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/error.h"

namespace nlac {

inline char* bytes_at(const at::Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.data_ptr()) + offset * static_cast<int64_t>(tensor.element_size());
}

inline bool same_memory(const at::Tensor& a, const at::Tensor& b) { return a.data_ptr() == b.data_ptr(); }

// The memory of a call's tensors. Blocks of several tensors are computed at once, in any order, so what
// one of them writes must not be another's.
class Memory {
 public:
  void reads(const char* what, size_t i, const at::Tensor& tensor) { add(what, i, tensor, false); }
  void writes(const char* what, size_t i, const at::Tensor& tensor) { add(what, i, tensor, true); }

  // Throws ERR_VALUE if a tensor that is written shares memory with another.
  void check() {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    // Of the ranges so far, the one that is read and the one that is written that end last.
    const Range *read = nullptr, *written = nullptr;
    for (const Range& range : ranges_) {
      const auto meets = [&](const Range* other) { return other != nullptr && other->end > range.begin; };
      const Range* const other = meets(written) ? written : range.written && meets(read) ? read : nullptr;
      NLAC_REQUIRE(other == nullptr, "ERR_VALUE", range.what, " ", range.i, " and ", other->what, " ",
                   other->i, " are in the same memory");
      const Range*& last = range.written ? written : read;
      if (last == nullptr || range.end > last->end) last = &range;
    }
  }

 private:
  struct Range {
    const char *begin, *end, *what;
    size_t i;
    bool written;
  };

  void add(const char* what, size_t i, const at::Tensor& tensor, bool written) {
    if (tensor.numel() > 0)
      ranges_.push_back({bytes_at(tensor, 0), bytes_at(tensor, tensor.numel()), what, i, written});
  }

  std::vector<Range> ranges_;
};

}  // namespace nlac
