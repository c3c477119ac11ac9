// The allocator functions used when a recording fails.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <utility>

namespace c10::cuda {

using MempoolId_t = std::pair<unsigned long long, unsigned long long>;

namespace CUDACachingAllocator {
inline void endAllocateToPool(DeviceIndex, MempoolId_t) {}
}  // namespace CUDACachingAllocator

}  // namespace c10::cuda
