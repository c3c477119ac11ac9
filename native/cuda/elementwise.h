// A layer's arithmetic between the matrix products on a GPU, but for rms_norm.h: the counterpart of
// core/model/elementwise.h. Plain device pointers, no torch. Asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nlac::cuda {

// For inference: x [rows, n] f32, the residual stream, += added [rows, n] (null: nothing); normed [rows, n] = x
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

enum class Gate { silu, gelu };  // gelu: approximated by tanh

// gate_up [rows, 2n], gate first → y [rows, n] = activation(gate) · up, rounded once. Both bf16 or
// both f32.
cudaError_t gated(Gate activation, const void* gate_up, int64_t rows, int64_t n, void* y, bool is_bf16,
                  cudaStream_t stream);

// The gradient at gate_up [rows, 2n], given `grad` [rows, n] at y.
cudaError_t gated_backward(Gate activation, const void* grad, const void* gate_up, int64_t rows, int64_t n,
                           void* result, bool is_bf16, cudaStream_t stream);

// Rotates, in place, the first 2 half dimensions of each head of x [tokens, heads, …], whose tokens
// and heads are so many elements apart. Dimension i pairs with i + half. `sign` multiplies the sine.
struct Rotation {
  void* x;
  int64_t tokens, heads, of_token, of_head, half;
  const float *cos, *sin;    // [positions, half]
  const int64_t* positions;  // [tokens]
  float sign;
  bool is_bf16;  // x, otherwise f32
};
cudaError_t rotate(const Rotation& given, cudaStream_t stream);

}  // namespace nlac::cuda
