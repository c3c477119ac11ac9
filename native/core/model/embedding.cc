#include "core/model/embedding.h"

#include <ATen/Parallel.h>

namespace nlac {

double rounded_scale(double scale, at::ScalarType type) {
  return at::scalar_tensor(scale, at::kDouble).to(type).to(at::kDouble).item<double>();
}

at::Tensor embedded_rows(const at::Tensor& matrix, const at::Tensor& ids, double scale) {
  at::Tensor rows = matrix.index_select(0, ids);
  if (scale != 1) rows.mul_(rounded_scale(scale, matrix.scalar_type()));
  return rows;
}

void add_embedding_gradient(at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows,
                            double scale) {
  const at::Tensor scaled = scale != 1 ? rows * rounded_scale(scale, rows.scalar_type()) : rows;
  const at::Tensor added = scaled.to(gradient.scalar_type()).contiguous();
  // index_put_ sorts on a GPU, but on a CPU its threads add atomically in any order.
  if (!gradient.is_cpu()) {
    gradient.index_put_({ids}, added, true);
    return;
  }
  const int64_t tokens = added.size(0), hidden = added.size(1);
  const at::Tensor index = ids.contiguous();
  const int64_t* id = index.const_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(added.scalar_type(), "add_embedding_gradient", [&] {
    const scalar_t* from = added.const_data_ptr<scalar_t>();
    scalar_t* to = gradient.mutable_data_ptr<scalar_t>();
    // Each thread has its own columns.
    at::parallel_for(0, hidden, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t c = begin; c < end; ++c) to[id[t] * hidden + c] += from[t * hidden + c];
    });
  });
}

}  // namespace nlac
