// Inference of gated delta nets on a GPU, token by token: gated_delta_steps of core/model/gated_delta.h. A
// text's results do not depend on the texts beside it, nor on how its tokens are divided among steps. Plain
// device pointers, no torch. Asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nlac::cuda {

// The sizes of GatedDeltaShape.
struct DeltaShape {
  int key_heads, heads, key_dim, value_dim, kernel;
  float eps;
};

// Whether the kernels support it: key_dim 8, 16, 32, 64, 128 or 256, and a convolution over 2 to 4 tokens.
bool takes_delta(const DeltaShape& shape);

// A text of a step: its rows `first` … first + fresh - 1, and its state, which is advanced.
struct DeltaText {
  float* recurrent;  // [heads, key_dim, value_dim]
  float* inputs;     // [kernel - 1, channels], channels = 2 key_heads · key_dim + heads · value_dim
  int64_t first, fresh;
};

struct DeltaSteps {
  DeltaShape shape;
  const DeltaText* texts;  // [count], in device memory
  int count;
  int64_t tokens, longest;  // of all texts, and of one
  const void* projected;    // [tokens, channels | values | heads | heads] (q k v, z, b, a), adjacent elements
  int64_t stride;           // elements between its rows
  const void *convolution, *decay_log, *decay_bias, *norm;  // [channels, kernel], [heads] twice, [value_dim]
  bool is_bf16;      // the type of projected, of the weights and of output, otherwise f32
  float* convolved;  // [tokens, channels], overwritten
  float* mixed;      // [tokens, heads, value_dim], overwritten
  void* output;      // [tokens, heads, value_dim], the result
};
cudaError_t delta_steps(const DeltaSteps& steps, cudaStream_t stream);

}  // namespace nlac::cuda
