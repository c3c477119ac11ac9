// RMS normalisation and its backward pass on a GPU: the counterpart of rms_norm in
// core/model/elementwise.h. Plain device pointers, no torch. Asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nlac::cuda {

// Where [tokens, heads, n] lies: tokens and heads are so many elements apart, the n elements are
// adjacent.
struct Heads {
  const void* data;
  int64_t of_token, of_head;
};

// What normalises [tokens, heads, n] over n, in float32: x · scale, rounded, times weight [n]. With
// plus_one: x · scale · (1 + weight), rounded once.
struct RmsNorm {
  int64_t tokens, heads, n;
  const void* weight;
  float eps;
  bool plus_one;
  bool is_bf16;  // the type of weight and of everything below, otherwise f32
};

// y, whose memory is written, = x normalised. `x_is_f32`: x is f32 whatever the other type is.
cudaError_t rms_norm(const RmsNorm& norm, const Heads& x, bool x_is_f32, const Heads& y, cudaStream_t stream);

// result [tokens, heads, n] = the gradient at x, given `grad` at y, plus residual [tokens, heads, n]
// (null: nothing), rounded once. scales [tokens, heads] (null: not wanted) = 1 / rms of each row.
struct NormBackward {
  Heads grad, x;
  const void* residual;
  void* result;
  float* scales;
};
cudaError_t rms_norm_backward(const RmsNorm& norm, const NormBackward& given, cudaStream_t stream);

// The gradient at the weight is the sum of parts [weight_parts(norm), n] over the first dimension.
// Deterministic.
int64_t weight_parts(const RmsNorm& norm);
cudaError_t rms_norm_weight_gradient(const RmsNorm& norm, const Heads& grad, const Heads& x,
                                     const float* scales, float* parts, cudaStream_t stream);

}  // namespace nlac::cuda
