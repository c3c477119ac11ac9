// Copies of the host's tensors on a device. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

namespace nlac {

// A copy of x, which lies on the host, on `device`. On a GPU through pinned memory, so that the host does
// not wait for the GPU's earlier work, as it would for a copy of pageable memory.
inline at::Tensor upload(const at::Tensor& x, at::Device device) {
  return device.is_cuda() ? x.pin_memory().to(device, x.scalar_type(), /*non_blocking=*/true) : x.to(device);
}

}  // namespace nlac
