// adamw_step of core/optim/optim.h on a GPU: the same bits as on the CPU, given the same norm.
// Plain device pointers, no torch. Asynchronous on `stream`; a non-finite gradient is handled on
// the device, without waiting for the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/optim/update_math.h"

namespace nlac::cuda {

struct AdamWTensor {
  float *w, *m, *v, *g;     // [count]: master weights, moments, gradient
  void* compute = nullptr;  // [count] bf16, gets w rounded to nearest; null: none
  float* target = nullptr;  // [count], a moving average of w to update; null: none
  void* shadow = nullptr;   // [count] bf16, gets the target rounded to nearest; null: none
  int64_t count;
  float decay;  // of w, as AdamWFactors has it
};

// Returns the size, in doubles, of the workspace of a step on `tensors` [count].
int64_t adamw_workspace(const AdamWTensor* tensors, int64_t count);

// Computes the norm of all gradients, the clip factor (none if max_grad_norm ≤ 0), the step, and
// target ← target + target_rate·(w - target), target_rate in [0, 1]. Ignores clip and decay of
// `factors`. Gradients become 0; if the norm is not finite, nothing else is written. workspace[0]
// receives the norm before clipping, summed in an order that depends only on the tensors' sizes.
// `tensors` lie in host memory and are copied before the call returns. Three launches for hundreds
// of tensors.
cudaError_t adamw_step(const AdamWTensor* tensors, int64_t count, const AdamWFactors& factors,
                       double max_grad_norm, float target_rate, double* workspace, cudaStream_t stream);

}  // namespace nlac::cuda
