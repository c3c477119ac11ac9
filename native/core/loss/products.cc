#include "core/loss/products.h"

#include <algorithm>

#include "core/cpu/tensors.h"

namespace nlac {
namespace {

// Whether the device multiplies bf16 with float32 results.
bool mixed_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result) {
  return a.is_cuda() && a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16 &&
         result.scalar_type() == at::kFloat;
}

// result = a · b by the CPU's kernels, which widen bfloat16 a panel at a time.
bool multiplied(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result, bool add) {
  if (!cpu::takes(a) || !cpu::takes(b) || !cpu::takes(result)) return false;
  cpu::multiply(a, b, result, add);
  return true;
}

// Calls body(first, rows) for the matrix converted to another type, a few rows at a time.
template <typename Body>
void by_rows(const at::Tensor& weight, at::ScalarType type, const Body& body) {
  constexpr int64_t at_once = 8192;
  for (int64_t v = 0; v < weight.size(0); v += at_once)
    body(v, weight.narrow(0, v, std::min(at_once, weight.size(0) - v)).to(type));
}

}  // namespace

void product_logits(const at::Tensor& hidden, const at::Tensor& weight, at::Tensor logits) {
  if (mixed_product(hidden, weight, logits)) {
    at::mm_out(logits, hidden, weight.t(), at::kFloat);
  } else if (!multiplied(hidden, weight.t(), logits, false)) {
    const at::Tensor wide = hidden.to(logits.scalar_type());
    by_rows(weight, logits.scalar_type(), [&](int64_t v, const at::Tensor& rows) {
      logits.narrow(1, v, rows.size(0)).copy_(wide.mm(rows.t()));
    });
  }
}

void product_hidden(const at::Tensor& gradient, const at::Tensor& weight, at::Tensor grad_hidden) {
  if (mixed_product(gradient, weight, grad_hidden)) {
    at::mm_out(grad_hidden, gradient, weight, at::kFloat);
  } else if (!multiplied(gradient, weight, grad_hidden, false)) {
    grad_hidden.zero_();
    by_rows(weight, gradient.scalar_type(), [&](int64_t v, const at::Tensor& rows) {
      grad_hidden.addmm_(gradient.narrow(1, v, rows.size(0)), rows);
    });
  }
}

void product_weight(const at::Tensor& gradient, const at::Tensor& hidden, at::Tensor grad_weight) {
  if (mixed_product(gradient, hidden, grad_weight)) {
    // In place: a separate product would be a float32 tensor of the matrix's size.
    at::addmm_out(grad_weight, grad_weight, gradient.t(), hidden, at::kFloat);
  } else if (!multiplied(gradient.t(), hidden, grad_weight, true)) {
    grad_weight.addmm_(gradient.t().to(grad_weight.scalar_type()), hidden.to(grad_weight.scalar_type()));
  }
}

}  // namespace nlac
