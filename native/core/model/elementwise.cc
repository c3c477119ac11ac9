#include "core/model/elementwise.h"

namespace nlac {
namespace {

// What intermediate results are held in: float32, or float64 when the model itself is float64.
at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor inverse_rms(const at::Tensor& x, double eps) { return x.square().mean(-1, true).add_(eps).rsqrt_(); }

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor values = x.to(wide(x));
  return (values * inverse_rms(values, eps)).to(x.scalar_type()) * weight;
}

at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, double eps,
                             at::Tensor grad_weight) {
  const at::Tensor values = x.to(wide(x)), upstream = grad.to(wide(x));
  const at::Tensor scale = inverse_rms(values, eps);
  const at::Tensor normalised = values * scale;
  if (grad_weight.defined()) grad_weight.add_((upstream * normalised).reshape({-1, x.size(-1)}).sum(0));
  const at::Tensor direct = upstream * weight.to(wide(x));
  const at::Tensor along = (direct * normalised).mean(-1, true);
  return ((direct - normalised * along) * scale).to(x.scalar_type());
}

void rotate(at::Tensor x, const Rope& rope, const at::Tensor& positions, bool inverse) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor cos = rope.cos.index_select(0, positions).unsqueeze(1).to(wide(x));
  at::Tensor sin = rope.sin.index_select(0, positions).unsqueeze(1).to(wide(x));
  if (inverse) sin = sin.neg();
  at::Tensor low = x.narrow(-1, 0, half), high = x.narrow(-1, half, half);
  const at::Tensor a = low.to(wide(x), false, true), b = high.to(wide(x), false, true);
  low.copy_(a * cos - b * sin);
  high.copy_(b * cos + a * sin);
}

at::Tensor gated_silu(const at::Tensor& gate_up) {
  const int64_t n = gate_up.size(1) / 2;
  return at::silu(gate_up.narrow(1, 0, n)).mul_(gate_up.narrow(1, n, n));
}

at::Tensor gated_silu_backward(const at::Tensor& grad, const at::Tensor& gate_up) {
  const int64_t n = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, n), up = gate_up.narrow(1, n, n);
  at::Tensor result = at::empty_like(gate_up);
  result.narrow(1, 0, n).copy_(at::silu_backward(grad * up, gate));
  result.narrow(1, n, n).copy_(grad * at::silu(gate));
  return result;
}

}  // namespace nlac
