// The moving average of core/optim/optim.h's ema_update on a GPU: one pass over memory for a whole list of
// tensors. Plain pointers on the device, no torch. Asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nlac::cuda {

struct EmaTensor {
  float* target;       // [count]
  const void* online;  // [count] bf16 or f32
  void* shadow;        // [count] bf16, gets the target rounded to nearest; null: none
  int64_t count;
};

// target ← target + tau·(online - target), tau in [0, 1], for `tensors` [count], which lie in the host's
// memory and are copied before the call returns. One launch for every 96 tensors.
cudaError_t ema_update(const EmaTensor* tensors, int64_t count, bool online_is_bf16, float tau,
                       cudaStream_t stream);

}  // namespace nlac::cuda
