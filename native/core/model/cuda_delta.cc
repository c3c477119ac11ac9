#include "core/model/cuda_delta.h"

#ifdef NLAC_CUDA

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstring>

#include "core/cuda_error.h"
#include "core/model/kv_store.h"  // NLAC_KERNEL_DEVICE
#include "core/model/upload.h"
#include "cuda/delta.h"

namespace nlac::gpu {
namespace {

cuda::DeltaShape shape_of(const GatedDeltaShape& shape) {
  return {static_cast<int>(shape.key_heads), static_cast<int>(shape.heads),  static_cast<int>(shape.key_dim),
          static_cast<int>(shape.value_dim), static_cast<int>(shape.kernel), static_cast<float>(shape.eps)};
}

// The slices' states and rows, [slices, 4] i64 on the device.
at::Tensor texts_of(const std::vector<DeltaSlice>& slices, at::Device device) {
  const auto count = static_cast<int64_t>(slices.size());
  const at::Tensor texts = at::empty({count, sizeof(cuda::DeltaText) / sizeof(int64_t)}, at::kLong);
  auto* const bytes = static_cast<char*>(texts.mutable_data_ptr());
  int64_t first = 0;
  for (size_t i = 0; i < slices.size(); first += slices[i].fresh, ++i) {
    const cuda::DeltaText text{slices[i].state.recurrent.data_ptr<float>(),
                               slices[i].state.inputs.data_ptr<float>(), first, slices[i].fresh};
    std::memcpy(bytes + i * sizeof(text), &text, sizeof(text));
  }
  return upload(texts, device);
}

}  // namespace

bool takes_delta(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                 const at::Tensor& projected) {
  const at::ScalarType type = projected.scalar_type();
  if (projected.device().type() != NLAC_KERNEL_DEVICE || (type != at::kFloat && type != at::kBFloat16))
    return false;
  for (const at::Tensor* weight :
       {&weights.convolution, &weights.decay_log, &weights.decay_bias, &weights.norm})
    if (weight->scalar_type() != type) return false;
  return cuda::takes_delta(shape_of(shape));
}

at::Tensor delta_steps(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                       const at::Tensor& projected, const std::vector<DeltaSlice>& slices) {
  const c10::cuda::OptionalCUDAGuard guard(projected.device());
  const at::Tensor rows = projected.stride(-1) == 1 ? projected : projected.contiguous(),
                   texts = texts_of(slices, rows.device()), taps = weights.convolution.contiguous(),
                   decay_log = weights.decay_log.contiguous(), decay_bias = weights.decay_bias.contiguous(),
                   norm = weights.norm.contiguous();
  const int64_t tokens = rows.size(0);
  const auto in_float = rows.options().dtype(at::kFloat);
  const at::Tensor convolved = at::empty({tokens, shape.channels()}, in_float),
                   mixed = at::empty({tokens, shape.values()}, in_float),
                   output = at::empty({tokens, shape.values()}, rows.options());
  int64_t longest = 0;
  for (const DeltaSlice& slice : slices) longest = std::max(longest, slice.fresh);
  check_cuda(cuda::delta_steps({shape_of(shape), static_cast<const cuda::DeltaText*>(texts.const_data_ptr()),
                                static_cast<int>(slices.size()), tokens, longest, rows.const_data_ptr(),
                                rows.stride(0), taps.const_data_ptr(), decay_log.const_data_ptr(),
                                decay_bias.const_data_ptr(), norm.const_data_ptr(),
                                rows.scalar_type() == at::kBFloat16, convolved.mutable_data_ptr<float>(),
                                mixed.mutable_data_ptr<float>(), output.mutable_data_ptr()},
                               c10::cuda::getCurrentCUDAStream()),
             "a gated delta net's kernels");
  return output;
}

}  // namespace nlac::gpu

#else

namespace nlac::gpu {

bool takes_delta(const GatedDeltaShape&, const GatedDeltaWeights&, const at::Tensor&) { return false; }

at::Tensor delta_steps(const GatedDeltaShape&, const GatedDeltaWeights&, const at::Tensor&,
                       const std::vector<DeltaSlice>&) {
  return {};
}

}  // namespace nlac::gpu

#endif
