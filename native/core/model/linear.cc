#include "core/model/linear.h"

#include "core/cpu/bf16_kernels.h"
#include "core/cpu/tensors.h"
#include "core/loss/products.h"

namespace nlac {
namespace {

// Up to this many rows reading the weights dominates, and libtorch would repack them first.
constexpr int64_t few_rows = 64;

// Whether the bfloat16 pair kernels support x.
bool by_pairs(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && bf16::available();
}
bool few_by_pairs(const at::Tensor& x) { return by_pairs(x) && x.size(0) <= few_rows; }
bool by_kernels(const at::Tensor& x) { return cpu::takes(x) && !by_pairs(x); }

const bf16::Bits* bits(const at::Tensor& x) { return cpu::numbers<bf16::Bits>(x); }

template <typename Out>
at::Tensor run_pairs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     at::ScalarType type) {
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options().dtype(type));
  const at::Tensor rows = x.contiguous(), matrix = weight.contiguous();
  bf16::linear(bits(rows), x.size(0), bits(matrix), bits(bias), weight.size(0), weight.size(1),
               static_cast<Out*>(y.data_ptr()));
  return y;
}

// a [m, k] · b [k, n] in a's type.
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (!by_kernels(a)) return at::mm(a, b);
  const at::Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
  cpu::multiply(a, b, result);
  return result;
}

// sum [m, n] += a [m, k] · b [k, n], rounded once.
void add_product(const at::Tensor& a, const at::Tensor& b, at::Tensor sum) {
  if (!by_kernels(a)) {
    sum.addmm_(a, b);
  } else if (sum.scalar_type() == at::kFloat) {
    cpu::multiply(a, b, sum, true);
  } else {
    cpu::multiply(a, b, sum, false, {}, sum);
  }
}

void add_weight_gradient(const at::Tensor& grad, const at::Tensor& x, at::Tensor sum) {
  if (by_pairs(x) && sum.scalar_type() == at::kFloat && sum.is_contiguous()) {
    const at::Tensor a = grad.contiguous(), b = x.contiguous();
    bf16::add_transposed_product(bits(a), bits(b), a.size(0), a.size(1), b.size(1), sum.data_ptr<float>());
  } else {
    product_weight(grad, x, sum);
  }
}

at::Tensor plain_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const at::Tensor& residual = {}) {
  if (!by_kernels(x) && residual.defined()) return plain_forward(x, weight, bias).add_(residual);
  if (few_by_pairs(x)) return run_pairs<bf16::Bits>(x, weight, bias, at::kBFloat16);
  if (!by_kernels(x))
    return at::linear(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
  const at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
  cpu::multiply(x, weight.t(), y, false, bias, residual);
  return y;
}

// --- adapters: with h = scale · A x, y += B h ----------------------------------------------------

// h of all parts side by side, [rows, parts * rank].
at::Tensor adapter_down(const at::Tensor& x, const Adapter& adapter) {
  return plain_forward(x, adapter.a, {}).mul_(adapter.scale);
}

// `by_rows`: a row's result must not depend on how many rows there are.
void add_adapter(const at::Tensor& x, const Adapter& adapter, const at::Tensor& y, bool by_rows = false) {
  if (!adapter.a.defined()) return;
  const at::Tensor down = by_rows && by_pairs(x)
                              ? run_pairs<bf16::Bits>(x, adapter.a, {}, at::kBFloat16).mul_(adapter.scale)
                              : adapter_down(x, adapter);
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const at::Tensor h = adapter.part_of_down(down, i), b = adapter.part_b(i);
    at::Tensor sum = adapter.part_of_output(y, i);
    if (by_pairs(x) && (by_rows || x.size(0) <= few_rows))
      sum.add_(run_pairs<float>(h, b, {}, at::kFloat));
    else if (by_kernels(x) || sum.scalar_type() == h.scalar_type())
      add_product(h, b.t(), sum);
    else
      add_linear(h, b, {}, sum);
  }
}

// Adds to `grad_x` what reaches x through the adapter, and the gradients at A and B into those of
// `into`.
void add_adapter_backward(const at::Tensor& grad, const at::Tensor& x, const Adapter& adapter,
                          at::Tensor grad_x, const Adapter& into) {
  const at::Tensor down = adapter_down(x, adapter);
  const at::Tensor at_down = at::empty_like(down);
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const at::Tensor part = adapter.part_of_output(grad, i);
    if (into.b.defined()) add_weight_gradient(part, adapter.part_of_down(down, i), into.part_b(i));
    adapter.part_of_down(at_down, i).copy_(product(part, adapter.part_b(i)));
  }
  at_down.mul_(adapter.scale);
  if (into.a.defined()) add_weight_gradient(at_down, x, into.a);
  add_product(at_down, adapter.a, grad_x);
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const Adapter& adapter, const at::Tensor& residual) {
  const at::Tensor y = plain_forward(x, weight, bias, residual);
  add_adapter(x, adapter, y);
  return y;
}

void add_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor sum,
                const Adapter& adapter) {
  const bool in_float = sum.scalar_type() == at::kFloat;
  if (by_kernels(x) && in_float)
    cpu::multiply(x, weight.t(), sum, true, bias);
  else if (few_by_pairs(x) && in_float)
    sum.add_(run_pairs<float>(x, weight, bias, at::kFloat));
  else
    sum.add_(plain_forward(x, weight, bias));
  add_adapter(x, adapter, sum);
}

at::Tensor linear_in_float(const at::Tensor& x, const at::Tensor& weight) {
  if (by_pairs(x)) return run_pairs<float>(x, weight, {}, at::kFloat);
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options().dtype(at::kFloat));
  product_logits(x, weight, y);
  return y;
}

PackedMatrix::PackedMatrix(const at::Tensor& weight, bool int8) : weight_(weight) {
  if (!cpu::takes(weight)) return;
  const int64_t out = weight.size(0), in = weight.size(1);
  const at::Tensor matrix = weight.contiguous();
  cpu::with_number(weight, [&]<typename Number>(Number) {
    using Packed = cpu::PackedWeights<Number>;
    const Number* const numbers = cpu::numbers<Number>(matrix);
    if (int8) {
      panels_ = at::empty({Packed::size(out, in)}, weight.options().dtype(at::kChar));
      scales_ = at::empty({Packed::scales(out, in)}, weight.options().dtype(at::kFloat));
      Packed::pack_int8(numbers, out, in, panels_.data_ptr<int8_t>(), scales_.data_ptr<float>());
    } else {
      panels_ = at::empty({Packed::size(out, in)}, weight.options());
      Packed::pack(numbers, out, in, cpu::mutable_numbers<Number>(panels_));
    }
  });
}

void PackedMatrix::run(const at::Tensor& x, const at::Tensor& bias, at::Tensor y, bool add) const {
  const at::Tensor rows = x.contiguous();
  const int64_t out = weight_.size(0), in = weight_.size(1);
  cpu::with_number(weight_, [&]<typename Number>(Number) {
    const auto multiply = [&](const auto* packed, const float* scales) {
      const auto run_into = [&](auto* result) {
        cpu::packed_linear(cpu::numbers<Number>(rows), rows.size(0), packed, scales,
                           cpu::numbers<Number>(bias), out, in, result, y.stride(0), add);
      };
      if (y.scalar_type() == at::kFloat)
        run_into(y.data_ptr<float>());
      else
        run_into(cpu::mutable_numbers<Number>(y));
    };
    if (scales_.defined())
      multiply(panels_.const_data_ptr<int8_t>(), scales_.const_data_ptr<float>());
    else
      multiply(cpu::numbers<Number>(panels_), nullptr);
  });
}

at::Tensor PackedMatrix::forward(const at::Tensor& x, const at::Tensor& bias, const Adapter& adapter) const {
  if (!panels_.defined()) return linear_forward(x, weight_, bias, adapter);
  const at::Tensor y = at::empty({x.size(0), weight_.size(0)}, x.options());
  run(x, bias, y, false);
  add_adapter(x, adapter, y, true);
  return y;
}

void PackedMatrix::add(const at::Tensor& x, const at::Tensor& bias, at::Tensor sum,
                       const Adapter& adapter) const {
  if (!panels_.defined() || sum.scalar_type() != at::kFloat)
    return add_linear(x, weight_, bias, sum, adapter);
  run(x, bias, sum, true);
  add_adapter(x, adapter, sum, true);
}

at::Tensor PackedMatrix::in_float(const at::Tensor& x) const {
  if (!panels_.defined()) return linear_in_float(x, weight_);
  const at::Tensor y = at::empty({x.size(0), weight_.size(0)}, x.options().dtype(at::kFloat));
  run(x, {}, y, false);
  return y;
}

const PackedMatrix& PackedMatrices::of(const at::Tensor& weight, int64_t index, bool exact) {
  auto& stack = packed_[weight.unsafeGetTensorImpl()];
  if (stack.empty()) stack.resize(weight.dim() == 3 ? static_cast<size_t>(weight.size(0)) : 1);
  std::optional<PackedMatrix>& matrix = stack[static_cast<size_t>(index)];
  if (!matrix) matrix.emplace(weight.dim() == 3 ? weight[index] : weight, int8_ && !exact);
  return *matrix;
}

at::Tensor linear_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                           at::Tensor grad_weight, at::Tensor grad_bias, const Adapter& adapter,
                           const Adapter& grad_adapter) {
  if (grad_weight.defined()) add_weight_gradient(grad, x, grad_weight);
  if (grad_bias.defined()) grad_bias.add_(grad.sum(0, false, grad_bias.scalar_type()));
  const at::Tensor grad_x = product(grad, weight);
  if (adapter.a.defined()) add_adapter_backward(grad, x, adapter, grad_x, grad_adapter);
  return grad_x;
}

}  // namespace nlac
