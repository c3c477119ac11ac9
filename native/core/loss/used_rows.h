// The rows of a token loss that have a nonzero weight. Only they are computed.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/loss/row_detail.h"

namespace nlac {

// `count` of the rows have a nonzero weight. Thread rule: immutable.
class UsedRows {
 public:
  UsedRows(const at::Tensor& row_weights, int64_t count) : rows_(row_weights.size(0)), count_(count) {
    if (count_ < rows_) index_ = at::nonzero_static(row_weights, count_).squeeze(1);
  }

  int64_t count() const { return count_; }
  // Returns `count` of them from `first` on; a view if no row is dropped.
  at::Tensor take(const at::Tensor& all, int64_t first, int64_t count) const {
    return index_.defined() ? all.index_select(0, index_.narrow(0, first, count))
                            : all.narrow(0, first, count);
  }
  void put(const at::Tensor& all, int64_t first, const at::Tensor& some) const {
    if (index_.defined()) {
      all.index_copy_(0, index_.narrow(0, first, some.size(0)), some.to(all.scalar_type()));
    } else {
      all.narrow(0, first, some.size(0)).copy_(some);
    }
  }
  // Returns [rows, …] with 0 for dropped rows.
  at::Tensor spread(const at::Tensor& some) const {
    if (!some.defined() || !index_.defined()) return some;
    std::vector<int64_t> sizes = some.sizes().vec();
    sizes[0] = rows_;
    const at::Tensor all = at::zeros(sizes, some.options());
    put(all, 0, some);
    return all;
  }

  RowDetail spread(const RowDetail& some) const {
    return {spread(some.log_probs), spread(some.top), spread(some.top_log_probs)};
  }

 private:
  int64_t rows_, count_;
  at::Tensor index_;  // undefined: all of them
};

}  // namespace nlac
