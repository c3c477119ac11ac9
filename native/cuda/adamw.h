// The AdamW step of core/optim/optim.h's adamw_step on a GPU: the same bits as on the CPU, given the same
// norm. Plain pointers on the device, no torch. Everything is asynchronous on `stream`, also what a gradient
// that is not finite decides: nothing waits for the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/optim/update_math.h"

namespace nlac::cuda {

struct AdamWTensor {
  float *w, *m, *v, *g;     // [count]: master weights, moments, gradient
  void* compute = nullptr;  // [count] bf16, gets w rounded to nearest; null: none
  float* target = nullptr;  // [count], a moving average of w to take along; null: none
  void* shadow = nullptr;   // [count] bf16, gets the target rounded to nearest; null: none
  int64_t count;
  float decay;  // of w, as AdamWFactors has it
};

// Doubles that a step on `tensors` [count] works with.
int64_t adamw_workspace(const AdamWTensor* tensors, int64_t count);

// Norm of all gradients, clip factor (none where max_grad_norm ≤ 0), step, and target ← target + tau·(w -
// target), tau in [0, 1]. `factors` without its clip and decay. Gradients become 0; where the norm is not
// finite, nothing else is written. workspace[0] becomes the norm, before clipping; it is summed in an order
// that the tensors' sizes fix. `tensors` lie in the host's memory and are copied before the call returns. Three
// launches for hundreds of tensors.
cudaError_t adamw_step(const AdamWTensor* tensors, int64_t count, const AdamWFactors& factors,
                       double max_grad_norm, float tau, double* workspace, cudaStream_t stream);

}  // namespace nlac::cuda
