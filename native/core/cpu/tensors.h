// The kernels of this folder on tensors. Thread rule: the caller's thread, plus at::parallel_for.
#pragma once

#include <ATen/ATen.h>

#include "core/cpu/gemm.h"
#include "core/cpu/kernels.h"

namespace nlac::cpu {

// Whether the kernels support it: float32 or bfloat16 on the CPU.
inline bool takes(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

// Calls body with a float or a Bits, the kernels' type of x.
template <typename Body>
void with_number(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kFloat)
    body(float{});
  else
    body(Bits{});
}

// The data of x; null if it is undefined.
template <typename Number>
const Number* numbers(const at::Tensor& x) {
  return x.defined() ? static_cast<const Number*>(x.const_data_ptr()) : nullptr;
}
template <typename Number>
Number* mutable_numbers(const at::Tensor& x) {
  return x.defined() ? static_cast<Number*>(x.data_ptr()) : nullptr;
}

// result [m, n], rows of adjacent elements, = or (with `add`; f32 alone) += a [m, k] · b [k, n] +
// bias [n] + residual [m, n] (undefined: none), each of a type that is `taken`. A factor without a
// contiguous dimension is copied first.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result, bool add = false,
              const at::Tensor& bias = {}, const at::Tensor& residual = {});

}  // namespace nlac::cpu
