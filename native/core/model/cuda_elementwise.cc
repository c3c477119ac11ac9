#include "core/model/cuda_elementwise.h"

#ifdef NLAC_CUDA

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/cuda_error.h"
#include "core/model/kv_store.h"  // NLAC_KERNEL_DEVICE
#include "cuda/elementwise.h"
#include "cuda/rms_norm.h"

namespace nlac::gpu {
namespace {

bool is_bf16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

// Calls `launch` with the current stream of x's device.
template <typename Launch>
void on_device_of(const at::Tensor& x, const Launch& launch) {
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  check_cuda(launch(c10::cuda::getCurrentCUDAStream()), "a kernel of a layer");
}

// x [..., n] as [tokens, heads, n] with adjacent elements; a copy if needed. Tensors of one shape get one
// shape.
at::Tensor as_heads(const at::Tensor& x) {
  const at::Tensor rows = x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
  if (rows.dim() == 3) return rows;
  if (rows.dim() == 2) return rows.unsqueeze(1);
  return rows.contiguous().view({-1, 1, x.size(-1)});
}

cuda::Heads heads_of(const at::Tensor& x) { return {x.const_data_ptr(), x.stride(0), x.stride(1)}; }

cuda::RmsNorm norm_of(const at::Tensor& heads, const at::Tensor& weight, const Norm& norm) {
  return {heads.size(0), heads.size(1),  heads.size(2), weight.const_data_ptr(), static_cast<float>(norm.eps),
          norm.plus_one, is_bf16(weight)};
}

cuda::Gate gate_of(Activation activation) {
  return activation == Activation::silu ? cuda::Gate::silu : cuda::Gate::gelu;
}

}  // namespace

bool takes(const at::Tensor& x) {
  return x.device().type() == NLAC_KERNEL_DEVICE &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

void rms_norm_heads(const at::Tensor& x, const at::Tensor& weight, const Norm& norm, const at::Tensor& y) {
  const at::Tensor heads = as_heads(x);
  on_device_of(x, [&](cudaStream_t stream) {
    return cuda::rms_norm(norm_of(heads, weight, norm), heads_of(heads), x.scalar_type() == at::kFloat,
                          heads_of(as_heads(y)), stream);
  });
}

at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             const Norm& norm, at::Tensor grad_weight, const at::Tensor& residual) {
  const at::Tensor heads = as_heads(x), upstream = as_heads(grad);
  const at::Tensor added = residual.defined() ? residual.contiguous() : residual;
  const at::Tensor result = at::empty(x.sizes(), x.options());
  const cuda::RmsNorm shape = norm_of(heads, weight, norm);
  const auto wide = x.options().dtype(at::kFloat);
  const at::Tensor scales =
      grad_weight.defined() ? at::empty({shape.tokens * shape.heads}, wide) : at::Tensor();
  on_device_of(x, [&](cudaStream_t stream) {
    return cuda::rms_norm_backward(
        shape,
        {heads_of(upstream), heads_of(heads), added.defined() ? added.const_data_ptr() : nullptr,
         result.mutable_data_ptr(), scales.defined() ? scales.mutable_data_ptr<float>() : nullptr},
        stream);
  });
  if (!grad_weight.defined()) return result;
  const at::Tensor parts = at::empty({cuda::weight_parts(shape), shape.n}, wide);
  on_device_of(x, [&](cudaStream_t stream) {
    return cuda::rms_norm_weight_gradient(shape, heads_of(upstream), heads_of(heads),
                                          scales.const_data_ptr<float>(), parts.mutable_data_ptr<float>(),
                                          stream);
  });
  grad_weight.add_(parts.sum(0));
  return result;
}

void rotate(const at::Tensor& x, const Rope& rope, const at::Tensor& positions, bool inverse) {
  on_device_of(x, [&](cudaStream_t stream) {
    return cuda::rotate({x.mutable_data_ptr(), x.size(0), x.size(1), x.stride(0), x.stride(1),
                         rope.cos.size(1), rope.cos.const_data_ptr<float>(), rope.sin.const_data_ptr<float>(),
                         positions.const_data_ptr<int64_t>(), inverse ? -1.0f : 1.0f, is_bf16(x)},
                        stream);
  });
}

at::Tensor gated(const at::Tensor& gate_up, Activation activation) {
  const at::Tensor rows = gate_up.contiguous();
  const int64_t n = rows.size(1) / 2;
  const at::Tensor result = at::empty({rows.size(0), n}, rows.options());
  on_device_of(rows, [&](cudaStream_t stream) {
    return cuda::gated(gate_of(activation), rows.const_data_ptr(), rows.size(0), n, result.mutable_data_ptr(),
                       is_bf16(rows), stream);
  });
  return result;
}

at::Tensor gated_backward(const at::Tensor& grad, const at::Tensor& gate_up, Activation activation) {
  const at::Tensor rows = gate_up.contiguous(), upstream = grad.contiguous();
  const at::Tensor result = at::empty(rows.sizes(), rows.options());
  on_device_of(rows, [&](cudaStream_t stream) {
    return cuda::gated_backward(gate_of(activation), upstream.const_data_ptr(), rows.const_data_ptr(),
                                rows.size(0), rows.size(1) / 2, result.mutable_data_ptr(), is_bf16(rows),
                                stream);
  });
  return result;
}

}  // namespace nlac::gpu

#else

namespace nlac::gpu {

bool takes(const at::Tensor&) { return false; }

void rms_norm_heads(const at::Tensor&, const at::Tensor&, const Norm&, const at::Tensor&) {}

at::Tensor rms_norm_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, const Norm&, at::Tensor,
                             const at::Tensor&) {
  return {};
}

void rotate(const at::Tensor&, const Rope&, const at::Tensor&, bool) {}

at::Tensor gated(const at::Tensor&, Activation) { return {}; }

at::Tensor gated_backward(const at::Tensor&, const at::Tensor&, Activation) { return {}; }

}  // namespace nlac::gpu

#endif
