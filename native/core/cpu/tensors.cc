#include "core/cpu/tensors.h"

namespace nlac::cpu {
namespace {

Element element_of(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? Element::f32 : Element::bf16;
}

// A dimension of one element may have any step.
bool in_lines(const at::Tensor& x) {
  return x.stride(1) == 1 || x.stride(0) == 1 || x.size(0) == 1 || x.size(1) == 1;
}

Factor factor_of(const at::Tensor& x) {
  const bool by_row = x.stride(1) == 1 || x.size(1) == 1;
  return {x.const_data_ptr(), element_of(x), by_row ? x.stride(0) : 1, by_row ? 1 : x.stride(1)};
}

}  // namespace

void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result, bool add,
              const at::Tensor& bias, const at::Tensor& residual) {
  const int64_t m = a.size(0), n = b.size(1), k = a.size(1);
  TORCH_CHECK(takes(a) && takes(b) && takes(result) && b.size(0) == k && result.size(0) == m &&
                  result.size(1) == n && (n == 1 || result.stride(1) == 1) &&
                  !(add && result.scalar_type() != at::kFloat),
              "cpu::multiply: factors that do not fit");
  const at::Tensor left = in_lines(a) ? a : a.contiguous(), right = in_lines(b) ? b : b.contiguous();
  Addends addends;
  const at::Tensor offset = bias.defined() ? bias.contiguous() : bias,
                   added = residual.defined() ? residual.contiguous() : residual;
  if (offset.defined()) addends.bias = offset.const_data_ptr(), addends.bias_type = element_of(offset);
  if (added.defined()) {
    TORCH_CHECK(takes(added) && added.size(0) == m && added.size(1) == n,
                "cpu::multiply: a residual that does not fit");
    addends.residual = added.const_data_ptr();
    addends.residual_type = element_of(added);
    addends.stride = n;
  }
  multiply(m, n, k, factor_of(left), factor_of(right),
           {result.data_ptr(), element_of(result), m == 1 ? n : result.stride(0)}, add, addends);
}

}  // namespace nlac::cpu
