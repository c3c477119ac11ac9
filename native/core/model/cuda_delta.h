// Inference of gated delta nets by the kernels of native/cuda. Thread rule: the learner's thread.
#pragma once

#include "core/model/gated_delta.h"

namespace nlac::gpu {

// Whether the kernels support it: float32 or bfloat16 on a GPU, all weights of that type, and a shape of
// cuda::takes_delta. False without CUDA.
bool takes_delta(const GatedDeltaShape& shape, const GatedDeltaWeights& weights, const at::Tensor& projected);

// gated_delta_steps, token by token. A text's bits do not depend on the other slices, nor on how its past
// was divided among steps.
at::Tensor delta_steps(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                       const at::Tensor& projected, const std::vector<DeltaSlice>& slices);

}  // namespace nlac::gpu
