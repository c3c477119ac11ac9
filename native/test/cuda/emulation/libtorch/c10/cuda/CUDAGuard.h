// Guards of the emulated device's one stream.
#pragma once

#include <c10/cuda/CUDAStream.h>

namespace c10::cuda {

struct OptionalCUDAGuard {
  explicit OptionalCUDAGuard(Device) {}
};
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(const CUDAStream&) {}
};

}  // namespace c10::cuda
