// Rows of an embedding matrix by token, forward and backward. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

namespace nlac {

// `scale` rounded to `type`, as in transformers.
double rounded_scale(double scale, at::ScalarType type);

// The rows `ids` [tokens] i64 of `matrix` [vocab, n], times rounded_scale() → [tokens, n].
at::Tensor embedded_rows(const at::Tensor& matrix, const at::Tensor& ids, double scale);

// gradient[ids[t]] += rows[t] · rounded_scale(), in the order of t, so that runs are deterministic.
// `gradient` [vocab, n] is float32 (f64 for f64), `rows` [tokens, n] of the matrix's type.
void add_embedding_gradient(at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows,
                            double scale);

}  // namespace nlac
