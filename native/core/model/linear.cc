#include "core/model/linear.h"

#include "core/loss/products.h"
#include "core/model/bf16_kernels.h"

namespace nlac {
namespace {

// Up to this many rows the product is bound by reading the weights, and libtorch repacks them first.
constexpr int64_t few_rows = 64;

bool has_kernel(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && bf16::available();
}

const bf16::Bits* bits(const at::Tensor& x) {
  return x.defined() ? static_cast<const bf16::Bits*>(x.const_data_ptr()) : nullptr;
}

template <typename Out>
at::Tensor run_kernel(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      at::ScalarType type) {
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options().dtype(type));
  const at::Tensor rows = x.contiguous(), matrix = weight.contiguous();
  bf16::linear(bits(rows), x.size(0), bits(matrix), bits(bias), weight.size(0), weight.size(1),
               static_cast<Out*>(y.data_ptr()));
  return y;
}

void add_weight_gradient(const at::Tensor& grad, const at::Tensor& x, at::Tensor sum) {
  if (has_kernel(x) && sum.scalar_type() == at::kFloat && sum.is_contiguous()) {
    const at::Tensor a = grad.contiguous(), b = x.contiguous();
    bf16::add_transposed_product(bits(a), bits(b), a.size(0), a.size(1), b.size(1), sum.data_ptr<float>());
  } else {
    sum.addmm_(grad.to(sum.scalar_type()).t(), x.to(sum.scalar_type()));
  }
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (has_kernel(x) && x.size(0) <= few_rows) return run_kernel<bf16::Bits>(x, weight, bias, at::kBFloat16);
  return at::linear(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

void add_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor sum) {
  const bool exact = has_kernel(x) && x.size(0) <= few_rows && sum.scalar_type() == at::kFloat;
  sum.add_(exact ? run_kernel<float>(x, weight, bias, at::kFloat) : linear_forward(x, weight, bias));
}

at::Tensor linear_in_float(const at::Tensor& x, const at::Tensor& weight) {
  if (has_kernel(x)) return run_kernel<float>(x, weight, {}, at::kFloat);
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options().dtype(at::kFloat));
  product_logits(x, weight, y);
  return y;
}

at::Tensor linear_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                           at::Tensor grad_weight, at::Tensor grad_bias) {
  if (grad_weight.defined()) add_weight_gradient(grad, x, grad_weight);
  if (grad_bias.defined()) grad_bias.add_(grad.sum(0, false, grad_bias.scalar_type()));
  return at::mm(grad, weight);
}

}  // namespace nlac
