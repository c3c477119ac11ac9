#include "cuda/ema.h"

#include <cuda_bf16.h>

#include <algorithm>

namespace nlac::cuda {
namespace {

constexpr int threads = 256;
constexpr int64_t tile = 8192;  // elements a block works through
constexpr int batch_size = 96;  // tensors whose addresses fit in a launch's 4 KiB of arguments

struct Batch {
  EmaTensor tensors[batch_size];
  unsigned first_block[batch_size];  // the block at which a tensor starts
  int count;
};
static_assert(sizeof(Batch) <= 4096 - 16);

// Counted from the nearer end, as on the CPU, so that tau = 1 gives the online value exactly.
__device__ float mix(float target, float online, float tau) {
  return tau < 0.5f ? target + tau * (online - target) : online - (1 - tau) * (online - target);
}

__device__ float4 four(const float* from) { return *reinterpret_cast<const float4*>(from); }

__device__ float4 four(const __nv_bfloat16* from) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  return {__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xFFFF0000u),
          __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xFFFF0000u)};
}

__device__ float one(const float* from) { return *from; }
__device__ float one(const __nv_bfloat16* from) { return __bfloat162float(*from); }

__device__ bool aligned(const void* at, unsigned bytes) {
  return reinterpret_cast<uintptr_t>(at) % bytes == 0;
}

template <typename Online>
__global__ void __launch_bounds__(threads) ema_kernel(const __grid_constant__ Batch batch, float tau) {
  // The last tensor that starts at this block or before: empty ones share their start with the next.
  int low = 0, high = batch.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (batch.first_block[middle] <= blockIdx.x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const EmaTensor& tensor = batch.tensors[low];
  const int64_t begin = static_cast<int64_t>(blockIdx.x - batch.first_block[low]) * tile;
  const int64_t end = begin + tile < tensor.count ? begin + tile : tensor.count;
  float* target = tensor.target;
  const auto* online = static_cast<const Online*>(tensor.online);
  auto* shadow = static_cast<__nv_bfloat16*>(tensor.shadow);

  // Tiles start at multiples of four, so the tensors' own addresses decide.
  const bool wide = aligned(target, 16) && aligned(online, 4 * sizeof(Online)) && aligned(shadow, 8);
  const int64_t whole = wide ? end - (end - begin) % 4 : begin;
  for (int64_t i = begin + 4 * threadIdx.x; i < whole; i += 4 * threads) {
    float4 t = four(target + i);
    const float4 o = four(online + i);
    t = {mix(t.x, o.x, tau), mix(t.y, o.y, tau), mix(t.z, o.z, tau), mix(t.w, o.w, tau)};
    *reinterpret_cast<float4*>(target + i) = t;
    if (shadow != nullptr) {
      const __nv_bfloat162 halves[2] = {__floats2bfloat162_rn(t.x, t.y), __floats2bfloat162_rn(t.z, t.w)};
      *reinterpret_cast<uint2*>(shadow + i) = *reinterpret_cast<const uint2*>(halves);
    }
  }
  for (int64_t i = whole + threadIdx.x; i < end; i += threads) {
    const float next = mix(target[i], one(online + i), tau);
    target[i] = next;
    if (shadow != nullptr) shadow[i] = __float2bfloat16_rn(next);
  }
}

}  // namespace

cudaError_t ema_update(const EmaTensor* tensors, int64_t count, bool online_is_bf16, float tau,
                       cudaStream_t stream) {
  if (!(tau >= 0 && tau <= 1)) return cudaErrorInvalidValue;
  for (int64_t first = 0; first < count; first += batch_size) {
    Batch batch{};
    batch.count = static_cast<int>(std::min<int64_t>(batch_size, count - first));
    int64_t blocks = 0;
    for (int i = 0; i < batch.count; ++i) {
      batch.tensors[i] = tensors[first + i];
      batch.first_block[i] = static_cast<unsigned>(blocks);
      blocks += (batch.tensors[i].count + tile - 1) / tile;
    }
    if (blocks == 0) continue;
    if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    if (online_is_bf16) {
      ema_kernel<__nv_bfloat16><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(batch, tau);
    } else {
      ema_kernel<float><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(batch, tau);
    }
    const cudaError_t launched = cudaGetLastError();
    if (launched != cudaSuccess) return launched;
  }
  return cudaSuccess;
}

}  // namespace nlac::cuda
