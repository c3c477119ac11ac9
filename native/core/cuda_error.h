// Failed calls of the CUDA runtime. For sources that are compiled with NLAC_CUDA. No torch.
#pragma once

#include <cuda_runtime_api.h>

#include "core/error.h"

namespace nlac {

// Throws ERR_OUT_OF_MEMORY or ERR_DEVICE unless `status` is a success. `what` begins the message. A
// launch can run out of memory too: the first one of a kernel loads its code.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that the next launch is not taken to have failed
  fail(status == cudaErrorMemoryAllocation ? "ERR_OUT_OF_MEMORY" : "ERR_DEVICE", what, ": ",
       cudaGetErrorString(status));
}

}  // namespace nlac
