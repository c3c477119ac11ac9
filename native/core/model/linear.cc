#include "core/model/linear.h"

namespace nlac {

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

at::Tensor linear_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                           at::Tensor grad_weight, at::Tensor grad_bias) {
  if (grad_weight.defined()) {
    const auto type = grad_weight.scalar_type();
    grad_weight.addmm_(grad.to(type).t(), x.to(type));
  }
  if (grad_bias.defined()) grad_bias.add_(grad.sum(0, false, grad_bias.scalar_type()));
  return at::mm(grad, weight);
}

}  // namespace nlac
