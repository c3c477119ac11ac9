// What is recorded of a row of logits besides its loss: the log probability of the response's
// token, and the most probable tokens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace nlac {

// Results by row; "real" is the logits' type. Contiguous, on the logits' device.
struct RowDetail {
  at::Tensor log_probs;      // [rows] real: log softmax(logits / temperature) at the target
  at::Tensor top;            // [rows, k] i64, most probable first; undefined: left out
  at::Tensor top_log_probs;  // [rows, k] real; defined with `top`
};

// Empty results for `rows` rows; k = 0: without `top`. `options`: the logits' type and device.
RowDetail make_row_detail(int64_t rows, int64_t k, const at::TensorOptions& options);

// Rows `first` … of a detail.
RowDetail narrow(const RowDetail& detail, int64_t first, int64_t rows);

// Fills `to`. logits [rows, vocab] f32 or f64 with unit inner stride, which are only read. targets
// [rows] i64 in [0, vocab). 0 ≤ k ≤ vocab. On the CPU the smaller id comes first among equals, for
// f32. Other types and devices use libtorch's operators, within 64 MiB of temporary memory or one
// row's.
void row_detail(const at::Tensor& logits, double temperature, const at::Tensor& targets, const RowDetail& to);

}  // namespace nlac
