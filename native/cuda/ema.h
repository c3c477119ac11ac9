// ema_update of core/optim/optim.h on a GPU: one pass over memory for a list of tensors, with the
// same bits as on the CPU. Plain device pointers, no torch. Asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/optim/update_math.h"

namespace nlac::cuda {

struct EmaTensor {
  void* target;        // [count] f32, or bf16 that is rounded stochastically
  const void* online;  // [count] f32 or bf16
  void* shadow;        // [count] bf16, gets an f32 target rounded to nearest; null: none
  int64_t count;
  uint64_t first_counter;  // of the bits that round a bf16 target
  bool target_is_bf16, online_is_bf16;
};

// target ← target + target_rate·(online - target), target_rate in [0, 1], for `tensors` [count],
// which lie in host memory and are copied before the call returns. One launch for hundreds of
// tensors of the same two types.
cudaError_t ema_update(const EmaTensor* tensors, int64_t count, float target_rate, const Rounding& rounding,
                       cudaStream_t stream);

}  // namespace nlac::cuda
