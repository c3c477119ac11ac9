// core/model/elementwise.h by the kernels of native/cuda, for tensors on a GPU. Thread rule: the
// learner's thread.
#pragma once

#include "core/model/elementwise.h"

namespace nlac::gpu {

// Whether the kernels support it: float32 or bfloat16 on a GPU.
bool takes(const at::Tensor& x);

// As the functions of the same names. All tensors are of one type that is taken; x of a
// normalisation without backward may be f32.
void rms_norm_heads(const at::Tensor& x, const at::Tensor& weight, const Norm& norm, const at::Tensor& y);
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             const Norm& norm, at::Tensor grad_weight, const at::Tensor& residual);
void rotate(const at::Tensor& x, const Rope& rope, const at::Tensor& positions, bool inverse);
at::Tensor gated(const at::Tensor& gate_up, Activation activation);
at::Tensor gated_backward(const at::Tensor& grad, const at::Tensor& gate_up, Activation activation);

}  // namespace nlac::gpu
