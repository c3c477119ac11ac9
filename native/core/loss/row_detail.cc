#include "core/loss/row_detail.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/loss/row_kernels.h"

namespace nlac {
namespace {

constexpr int64_t slice_bytes = int64_t{64} << 20;

void with_operators(const at::Tensor& logits, double temperature, const at::Tensor& targets,
                    const RowDetail& to) {
  const at::Tensor scaled = logits / temperature, all = scaled.logsumexp(-1, true);
  to.log_probs.copy_((scaled.gather(1, targets.unsqueeze(1)) - all).squeeze(1));
  if (!to.top.defined()) return;
  const auto [values, indices] = scaled.topk(to.top.size(1), -1, true, true);
  to.top.copy_(indices);
  to.top_log_probs.copy_(values - all);
}

void fused(const at::Tensor& logits, double temperature, const at::Tensor& targets, const RowDetail& to) {
  const row_kernels::Kernels& kernels = row_kernels::kernels();
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  const int64_t k = to.top.defined() ? to.top.size(1) : 0;
  const auto inverse = static_cast<float>(std::min(1 / temperature, 1e30));
  const int64_t* target = targets.const_data_ptr<int64_t>();
  auto* const log_probs = to.log_probs.data_ptr<float>();
  int64_t* const top = k > 0 ? to.top.data_ptr<int64_t>() : nullptr;
  float* const top_log_probs = k > 0 ? to.top_log_probs.data_ptr<float>() : nullptr;
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> best;
    for (int64_t r = begin; r < end; ++r) {
      const float* row = logits.const_data_ptr<float>() + r * logits.stride(0);
      const row_kernels::Softmax softmax = kernels.softmax(row, vocab, inverse, false);
      const double log_sum = std::log(softmax.sum);
      const auto log_prob = [&](int64_t id) {
        return static_cast<float>((static_cast<double>(row[id]) - softmax.largest) * inverse - log_sum);
      };
      log_probs[r] = log_prob(target[r]);
      if (k == 0) continue;
      row_kernels::select_top(row, vocab, k, best);
      const auto better = [row](int64_t a, int64_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; };
      // A heap, because NaN among the logits would let std::sort read outside the list.
      std::make_heap(best.begin(), best.end(), better);
      std::sort_heap(best.begin(), best.end(), better);
      std::copy(best.begin(), best.end(), top + r * k);
      std::transform(best.begin(), best.end(), top_log_probs + r * k, log_prob);
    }
  });
}

}  // namespace

RowDetail make_row_detail(int64_t rows, int64_t k, const at::TensorOptions& options) {
  RowDetail detail{at::empty({rows}, options), {}, {}};
  if (k == 0) return detail;
  detail.top = at::empty({rows, k}, options.dtype(at::kLong));
  detail.top_log_probs = at::empty({rows, k}, options);
  return detail;
}

RowDetail narrow(const RowDetail& detail, int64_t first, int64_t rows) {
  const auto part = [&](const at::Tensor& all) {
    return all.defined() ? all.narrow(0, first, rows) : at::Tensor();
  };
  return {part(detail.log_probs), part(detail.top), part(detail.top_log_probs)};
}

void row_detail(const at::Tensor& logits, double temperature, const at::Tensor& targets,
                const RowDetail& to) {
  if (logits.is_cpu() && logits.scalar_type() == at::kFloat) return fused(logits, temperature, targets, to);
  const int64_t rows = logits.size(0);
  // The quotient, and the temporary copy of logsumexp.
  const int64_t row_bytes = 2 * logits.size(1) * static_cast<int64_t>(logits.element_size());
  const int64_t slice = std::max<int64_t>(1, slice_bytes / row_bytes);
  for (int64_t first = 0; first < rows; first += slice) {
    const int64_t count = std::min(slice, rows - first);
    with_operators(logits.narrow(0, first, count), temperature, targets.narrow(0, first, count),
                   narrow(to, first, count));
  }
}

}  // namespace nlac
