#include "core/model/linear.h"

#include "core/loss/products.h"
#include "core/model/bf16_kernels.h"
#include "core/model/f32_kernels.h"

namespace nlac {
namespace {

// Up to this many rows the product is bound by reading the weights, and libtorch repacks them first.
constexpr int64_t few_rows = 64;

bool has_kernel(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && bf16::available();
}
bool has_f32_kernel(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }
bool has_few_rows_kernel(const at::Tensor& x) { return has_kernel(x) && x.size(0) <= few_rows; }

const bf16::Bits* bits(const at::Tensor& x) {
  return x.defined() ? static_cast<const bf16::Bits*>(x.const_data_ptr()) : nullptr;
}

bf16::Bits* mutable_bits(const at::Tensor& x) { return static_cast<bf16::Bits*>(x.data_ptr()); }

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
    // A GPU multiplies bfloat16 into float32 by itself.
    product_weight(x.is_cuda() && x.scalar_type() == at::kBFloat16 ? grad : grad.to(sum.scalar_type()), x, sum);
  }
}

at::Tensor plain_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (has_few_rows_kernel(x)) return run_kernel<bf16::Bits>(x, weight, bias, at::kBFloat16);
  return at::linear(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

// --- adapters: with h = scale · A x, y += B h --------------------------------------------------------

// h of all parts side by side, [rows, parts * rank].
at::Tensor adapter_down(const at::Tensor& x, const Adapter& adapter) {
  return plain_forward(x, adapter.a, {}).mul_(adapter.scale);
}

// The i-th part's share of h or of the gradient at it, and of y or of the gradient at that.
at::Tensor part_of_down(const at::Tensor& down, const Adapter& adapter, size_t i) {
  return down.narrow(1, static_cast<int64_t>(i) * adapter.rank(), adapter.rank());
}
at::Tensor part_of_output(const at::Tensor& y, const Adapter& adapter, size_t i) {
  return y.narrow(1, adapter.parts[i].row, adapter.parts[i].rows);
}

void add_adapter(const at::Tensor& x, const Adapter& adapter, const at::Tensor& y) {
  if (!adapter.a.defined()) return;
  const at::Tensor down = adapter_down(x, adapter);
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const at::Tensor h = part_of_down(down, adapter, i), b = adapter.part_b(i);
    at::Tensor sum = part_of_output(y, adapter, i);
    if (has_few_rows_kernel(x) || sum.scalar_type() != h.scalar_type())
      add_linear(h, b, {}, sum);
    else
      sum.addmm_(h, b.t());
  }
}

// The same by kernels whose rows do not depend on one another, however many there are. In float32 the matrices are
// packed anew for each call: they are thin.
void add_adapter_by_rows(const at::Tensor& x, const Adapter& adapter, const at::Tensor& y) {
  if (!adapter.a.defined()) return;
  const bool packs = has_f32_kernel(x);
  const at::Tensor down =
      (packs ? PackedMatrix(adapter.a).in_float(x) : run_kernel<bf16::Bits>(x, adapter.a, {}, at::kBFloat16))
          .mul_(adapter.scale);
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const at::Tensor h = part_of_down(down, adapter, i), b = adapter.part_b(i);
    part_of_output(y, adapter, i)
        .add_(packs ? PackedMatrix(b).in_float(h) : run_kernel<float>(h, b, {}, at::kFloat));
  }
}

// Adds to `grad_x` what reaches x through the adapter, and the gradients at A and B into those of `into`.
void add_adapter_backward(const at::Tensor& grad, const at::Tensor& x, const Adapter& adapter,
                          at::Tensor grad_x, const Adapter& into) {
  const at::Tensor down = adapter_down(x, adapter);
  const at::Tensor at_down = at::empty_like(down);
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const at::Tensor part = part_of_output(grad, adapter, i);
    if (into.b.defined()) add_weight_gradient(part, part_of_down(down, adapter, i), into.part_b(i));
    part_of_down(at_down, adapter, i).copy_(at::mm(part, adapter.part_b(i)));
  }
  at_down.mul_(adapter.scale);
  if (into.a.defined()) add_weight_gradient(at_down, x, into.a);
  grad_x.addmm_(at_down, adapter.a);
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const Adapter& adapter) {
  const at::Tensor y = plain_forward(x, weight, bias);
  add_adapter(x, adapter, y);
  return y;
}

void add_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor sum,
                const Adapter& adapter) {
  const bool exact = has_few_rows_kernel(x) && sum.scalar_type() == at::kFloat;
  sum.add_(exact ? run_kernel<float>(x, weight, bias, at::kFloat) : plain_forward(x, weight, bias));
  add_adapter(x, adapter, sum);
}

at::Tensor linear_in_float(const at::Tensor& x, const at::Tensor& weight) {
  if (has_kernel(x)) return run_kernel<float>(x, weight, {}, at::kFloat);
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options().dtype(at::kFloat));
  product_logits(x, weight, y);
  return y;
}

PackedMatrix::PackedMatrix(const at::Tensor& weight, bool int8) : weight_(weight) {
  const int64_t out = weight.size(0), in = weight.size(1);
  const at::Tensor matrix = weight.contiguous();
  if (has_f32_kernel(weight)) {
    panels_ = at::empty({f32::packed_size(out, in)}, weight.options());
    f32::pack_weights(matrix.const_data_ptr<float>(), out, in, panels_.data_ptr<float>());
  } else if (has_kernel(weight) && in % 2 == 0 && int8) {
    panels_ = at::empty({bf16::packed_size(out, in)}, weight.options().dtype(at::kChar));
    scales_ = at::empty({bf16::int8_scales(out, in)}, weight.options().dtype(at::kFloat));
    bf16::pack_int8(bits(matrix), out, in, panels_.data_ptr<int8_t>(), scales_.data_ptr<float>());
  } else if (has_kernel(weight) && in % 2 == 0) {
    panels_ = at::empty({bf16::packed_size(out, in)}, weight.options());
    bf16::pack_weights(bits(matrix), out, in, mutable_bits(panels_));
  }
}

void PackedMatrix::run(const at::Tensor& x, const at::Tensor& bias, at::Tensor y, bool add) const {
  const at::Tensor rows = x.contiguous();
  const int64_t out = weight_.size(0), in = weight_.size(1);
  if (has_f32_kernel(weight_)) {
    f32::packed_linear(rows.const_data_ptr<float>(), rows.size(0), panels_.const_data_ptr<float>(),
                       bias.defined() ? bias.const_data_ptr<float>() : nullptr, out, in, y.data_ptr<float>(),
                       y.stride(0), add);
  } else {
    const auto multiply = [&](const auto*... packed) {
      if (y.scalar_type() == at::kFloat)
        bf16::packed_linear(bits(rows), rows.size(0), packed..., bits(bias), out, in, y.data_ptr<float>(),
                            y.stride(0), add);
      else
        bf16::packed_linear(bits(rows), rows.size(0), packed..., bits(bias), out, in, mutable_bits(y));
    };
    if (scales_.defined())
      multiply(panels_.const_data_ptr<int8_t>(), scales_.const_data_ptr<float>());
    else
      multiply(bits(panels_));
  }
}

at::Tensor PackedMatrix::forward(const at::Tensor& x, const at::Tensor& bias, const Adapter& adapter) const {
  if (!panels_.defined()) return linear_forward(x, weight_, bias, adapter);
  const at::Tensor y = at::empty({x.size(0), weight_.size(0)}, x.options());
  run(x, bias, y, false);
  add_adapter_by_rows(x, adapter, y);
  return y;
}

void PackedMatrix::add(const at::Tensor& x, const at::Tensor& bias, at::Tensor sum,
                       const Adapter& adapter) const {
  if (!panels_.defined() || sum.scalar_type() != at::kFloat)
    return add_linear(x, weight_, bias, sum, adapter);
  run(x, bias, sum, true);
  add_adapter_by_rows(x, adapter, sum);
}

at::Tensor PackedMatrix::in_float(const at::Tensor& x) const {
  if (!panels_.defined()) return linear_in_float(x, weight_);
  const at::Tensor y = at::empty({x.size(0), weight_.size(0)}, x.options().dtype(at::kFloat));
  run(x, {}, y, false);
  return y;
}

at::Tensor linear_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                           at::Tensor grad_weight, at::Tensor grad_bias, const Adapter& adapter,
                           const Adapter& grad_adapter) {
  if (grad_weight.defined()) add_weight_gradient(grad, x, grad_weight);
  if (grad_bias.defined()) grad_bias.add_(grad.sum(0, false, grad_bias.scalar_type()));
  const at::Tensor grad_x = at::mm(grad, weight);
  if (adapter.a.defined()) add_adapter_backward(grad, x, adapter, grad_x, grad_adapter);
  return grad_x;
}

}  // namespace nlac
