#include "core/model/elementwise.h"

#include "core/model/bf16_kernels.h"
#include "core/model/f32_kernels.h"

namespace nlac {
namespace {

// What intermediate results are held in: float32, or float64 when the model itself is float64.
at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor inverse_rms(const at::Tensor& x, double eps) {
  return x.square().mean(-1, true).add_(eps).rsqrt_();
}

bool has_kernel(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && bf16::available();
}

bool has_f32_kernel(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

const bf16::Bits* bits(const at::Tensor& x) {
  return x.defined() ? static_cast<const bf16::Bits*>(x.const_data_ptr()) : nullptr;
}
bf16::Bits* mutable_bits(const at::Tensor& x) { return static_cast<bf16::Bits*>(x.data_ptr()); }

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (has_kernel(weight)) {
    const at::Tensor rows = x.contiguous(), result = at::empty(x.sizes(), weight.options());
    const auto run = [&](const auto* values) {
      bf16::rms_norm(values, x.numel() / x.size(-1), x.size(-1), bits(weight), static_cast<float>(eps),
                     mutable_bits(result));
    };
    if (x.scalar_type() == at::kFloat)
      run(rows.const_data_ptr<float>());
    else
      run(bits(rows));
    return result;
  }
  if (has_f32_kernel(weight) && has_f32_kernel(x)) {
    const at::Tensor rows = x.contiguous(), result = at::empty(x.sizes(), x.options());
    f32::rms_norm(rows.const_data_ptr<float>(), x.numel() / x.size(-1), x.size(-1),
                  weight.const_data_ptr<float>(), static_cast<float>(eps), result.data_ptr<float>());
    return result;
  }
  const at::Tensor values = x.to(wide(x));
  return (values * inverse_rms(values, eps)).to(weight.scalar_type()) * weight;
}

at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps, at::Tensor grad_weight, const at::Tensor& residual) {
  if (has_kernel(x)) {
    const at::Tensor upstream = grad.contiguous(), rows = x.contiguous();
    const at::Tensor added = residual.defined() ? residual.contiguous() : residual;
    const at::Tensor result = at::empty(x.sizes(), x.options());
    bf16::rms_norm_backward(bits(upstream), bits(rows), bits(added), x.numel() / x.size(-1), x.size(-1),
                            bits(weight), static_cast<float>(eps), mutable_bits(result),
                            grad_weight.defined() ? grad_weight.data_ptr<float>() : nullptr);
    return result;
  }
  const at::Tensor values = x.to(wide(x)), upstream = grad.to(wide(x));
  const at::Tensor scale = inverse_rms(values, eps);
  const at::Tensor normalised = values * scale;
  if (grad_weight.defined()) grad_weight.add_((upstream * normalised).reshape({-1, x.size(-1)}).sum(0));
  const at::Tensor direct = upstream * weight.to(wide(x));
  const at::Tensor along = (direct * normalised).mean(-1, true);
  at::Tensor result = (direct - normalised * along) * scale;
  if (residual.defined()) result.add_(residual);
  return result.to(x.scalar_type());
}

void rotate(at::Tensor x, const Rope& rope, const at::Tensor& positions, bool inverse) {
  const int64_t half = x.size(-1) / 2;
  if (has_kernel(x) && half % 16 == 0) {
    bf16::rotate(mutable_bits(x), x.size(0), x.stride(0), x.size(1), half, rope.cos.const_data_ptr<float>(),
                 rope.sin.const_data_ptr<float>(), positions.const_data_ptr<int64_t>(),
                 inverse ? -1.0f : 1.0f);
    return;
  }
  if (has_f32_kernel(x)) {
    f32::rotate(x.data_ptr<float>(), x.size(0), x.stride(0), x.size(1), half,
                rope.cos.const_data_ptr<float>(), rope.sin.const_data_ptr<float>(),
                positions.const_data_ptr<int64_t>(), inverse ? -1.0f : 1.0f);
    return;
  }
  const at::Tensor cos = rope.cos.index_select(0, positions).unsqueeze(1).to(wide(x));
  at::Tensor sin = rope.sin.index_select(0, positions).unsqueeze(1).to(wide(x));
  if (inverse) sin = sin.neg();
  at::Tensor low = x.narrow(-1, 0, half), high = x.narrow(-1, half, half);
  const at::Tensor a = low.to(wide(x), false, true), b = high.to(wide(x), false, true);
  low.copy_(a * cos - b * sin);
  high.copy_(b * cos + a * sin);
}

at::Tensor gated_silu(const at::Tensor& gate_up) {
  const int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2;
  if (has_kernel(gate_up)) {
    const at::Tensor result = at::empty({rows, n}, gate_up.options());
    bf16::gated_silu(bits(gate_up), rows, n, mutable_bits(result));
    return result;
  }
  if (has_f32_kernel(gate_up)) {
    const at::Tensor result = at::empty({rows, n}, gate_up.options());
    f32::gated_silu(gate_up.const_data_ptr<float>(), rows, n, result.data_ptr<float>());
    return result;
  }
  return at::silu(gate_up.narrow(1, 0, n)).mul_(gate_up.narrow(1, n, n));
}

at::Tensor gated_silu_backward(const at::Tensor& grad, const at::Tensor& gate_up) {
  const int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2;
  at::Tensor result = at::empty_like(gate_up);
  if (has_kernel(gate_up)) {
    const at::Tensor upstream = grad.contiguous();
    bf16::gated_silu_backward(bits(upstream), bits(gate_up), rows, n, mutable_bits(result));
    return result;
  }
  const at::Tensor gate = gate_up.narrow(1, 0, n), up = gate_up.narrow(1, n, n);
  result.narrow(1, 0, n).copy_(at::silu_backward(grad * up, gate));
  result.narrow(1, n, n).copy_(grad * at::silu(gate));
  return result;
}

}  // namespace nlac
