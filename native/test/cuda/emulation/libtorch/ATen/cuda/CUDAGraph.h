// CUDA graphs on the emulated device, which runs what is recorded and has nothing to play again: a recording's first
// step is what a GPU's would be.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <stdexcept>

using cudaGraph_t = struct CUgraph_st*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return cudaSuccess; }

namespace at::cuda {

using c10::cuda::MempoolId_t;
inline MempoolId_t graph_pool_handle() { return {0, 1}; }

struct CUDAGraph {
  inline static int begun = 0, replayed = 0;
  inline static bool fails = false;

  void capture_begin(MempoolId_t, cudaStreamCaptureMode) {
    ++begun;
    if (fails) throw std::runtime_error("no recording here");
  }
  void capture_end() {}
  void replay() { ++replayed; }
};

}  // namespace at::cuda
