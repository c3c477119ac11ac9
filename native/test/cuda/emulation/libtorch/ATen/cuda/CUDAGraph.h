// CUDA graphs on the emulated device. Work runs while it is recorded and is not replayed; a
// recording's first step equals a GPU's.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };

namespace at::cuda {

using c10::cuda::MempoolId_t;
inline MempoolId_t graph_pool_handle() { return {0, 1}; }

struct CUDAGraph {
  inline static int begun = 0, replayed = 0, alive = 0;
  inline static bool fails = false;

  CUDAGraph() { ++alive; }
  ~CUDAGraph() { --alive; }
  CUDAGraph(const CUDAGraph&) = delete;

  void capture_begin(MempoolId_t, cudaStreamCaptureMode) {
    ++begun;
    emulated::capture_broken = fails;
  }
  void capture_end() {}
  void replay() { ++replayed; }
};

}  // namespace at::cuda
