#include "core/loss/products.h"

#include <algorithm>

namespace nlac {
namespace {

// Rows of the vocabulary matrix widened at a time: 8192 × 576 × 4 bytes is 18 MiB.
constexpr int64_t widened_rows = 8192;

// Whether the device multiplies bf16 into float32 by itself.
bool mixed_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result) {
  return a.is_cuda() && a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16 &&
         result.scalar_type() == at::kFloat;
}

}  // namespace

void product_logits(const at::Tensor& hidden, const at::Tensor& weight, at::Tensor logits) {
  if (mixed_product(hidden, weight, logits)) {
    at::mm_out(logits, hidden, weight.t(), at::kFloat);
    return;
  }
  const at::Tensor wide = hidden.to(logits.scalar_type());
  if (weight.scalar_type() == logits.scalar_type()) {
    at::mm_out(logits, wide, weight.t());
    return;
  }
  for (int64_t v = 0; v < weight.size(0); v += widened_rows) {
    const int64_t rows = std::min(widened_rows, weight.size(0) - v);
    logits.narrow(1, v, rows).copy_(wide.mm(weight.narrow(0, v, rows).to(logits.scalar_type()).t()));
  }
}

void product_hidden(const at::Tensor& gradient, const at::Tensor& weight, at::Tensor grad_hidden) {
  if (mixed_product(gradient, weight, grad_hidden)) {
    at::mm_out(grad_hidden, gradient, weight, at::kFloat);
    return;
  }
  if (weight.scalar_type() == gradient.scalar_type()) {
    at::mm_out(grad_hidden, gradient, weight);
    return;
  }
  grad_hidden.zero_();
  for (int64_t v = 0; v < weight.size(0); v += widened_rows) {
    const int64_t rows = std::min(widened_rows, weight.size(0) - v);
    grad_hidden.addmm_(gradient.narrow(1, v, rows), weight.narrow(0, v, rows).to(gradient.scalar_type()));
  }
}

void product_weight(const at::Tensor& gradient, const at::Tensor& hidden, at::Tensor grad_weight) {
  if (mixed_product(gradient, hidden, grad_weight)) {
    // In place: the product by itself would be as large as the matrix, in float32.
    at::addmm_out(grad_weight, grad_weight, gradient.t(), hidden, at::kFloat);
    return;
  }
  grad_weight.addmm_(gradient.t(), hidden.to(gradient.scalar_type()));
}

}  // namespace nlac
