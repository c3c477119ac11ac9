// The streams of libtorch's CUDA half, as far as the core names them, on the emulated device: it
// has one.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

namespace c10::cuda {

struct CUDAStream {
  operator cudaStream_t() const { return nullptr; }
  void synchronize() const {}
  DeviceIndex device_index() const { return 0; }
};
inline CUDAStream getCurrentCUDAStream() { return {}; }
inline CUDAStream getStreamFromPool(bool, DeviceIndex) { return {}; }

}  // namespace c10::cuda
