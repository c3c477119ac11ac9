// A layer's arithmetic between the matrix products, for inference on a GPU: the counterpart of
// core/model/elementwise.h, fused with the residual addition. Plain device pointers, no torch.
// Asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nlac::cuda {

// x [rows, n] f32, the residual stream, += added [rows, n] (null: nothing); normed [rows, n] = x
// normalised in float32, rounded, times weight [n]. added, weight and normed are all bf16 or all
// f32.
struct NormedRows {
  float* x;
  const void *added, *weight;
  void* normed;
  int64_t rows, n;
  float eps;
  bool is_bf16;
};
cudaError_t add_rms_norm(const NormedRows& given, cudaStream_t stream);

// gate_up [rows, 2n], gate first → y [rows, n] = silu(gate) · up, rounded once. Both bf16 or both
// f32.
cudaError_t gated_silu(const void* gate_up, int64_t rows, int64_t n, void* y, bool is_bf16,
                       cudaStream_t stream);

}  // namespace nlac::cuda
