// Loads and stores of float32 and bfloat16 elements, in accesses of up to 16 bytes, and a sum over a
// block. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace nlac::cuda {

template <int width>
struct Values {
  float of[width];
};

__device__ inline float widened(uint32_t bits) { return __uint_as_float(bits << 16); }

// `width` elements in accesses of up to 16 bytes, to which `from` is aligned.
template <int width>
__device__ Values<width> load(const float* from) {
  Values<width> values;
#pragma unroll
  for (int j = 0; j < width; j += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + j);
    values.of[j] = four.x, values.of[j + 1] = four.y, values.of[j + 2] = four.z, values.of[j + 3] = four.w;
  }
  return values;
}

template <int width>
__device__ Values<width> load(const __nv_bfloat16* from) {
  uint32_t words[width / 2];
  if constexpr (width == 8) {
    *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(from);
  } else {
    *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(from);
  }
  Values<width> values;
#pragma unroll
  for (int j = 0; j < width / 2; ++j) {
    values.of[2 * j] = widened(words[j]);
    values.of[2 * j + 1] = __uint_as_float(words[j] & 0xFFFF0000u);
  }
  return values;
}

__device__ inline void store(float* to, const Values<4>& v) {
  *reinterpret_cast<float4*>(to) = {v.of[0], v.of[1], v.of[2], v.of[3]};
}

__device__ inline void store(float* to, const Values<8>& v) {
  *reinterpret_cast<float4*>(to) = {v.of[0], v.of[1], v.of[2], v.of[3]};
  *reinterpret_cast<float4*>(to + 4) = {v.of[4], v.of[5], v.of[6], v.of[7]};
}

// To nearest.
__device__ inline void store(__nv_bfloat16* to, const Values<4>& v) {
  const __nv_bfloat162 halves[2] = {__floats2bfloat162_rn(v.of[0], v.of[1]),
                                    __floats2bfloat162_rn(v.of[2], v.of[3])};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(halves);
}

__device__ inline void store(__nv_bfloat16* to, const Values<8>& v) {
  const __nv_bfloat162 halves[4] = {
      __floats2bfloat162_rn(v.of[0], v.of[1]), __floats2bfloat162_rn(v.of[2], v.of[3]),
      __floats2bfloat162_rn(v.of[4], v.of[5]), __floats2bfloat162_rn(v.of[6], v.of[7])};
  uint4 words;
  memcpy(&words, halves, sizeof(words));
  *reinterpret_cast<uint4*>(to) = words;
}

__device__ inline float one(const float* from) { return *from; }
__device__ inline float one(const __nv_bfloat16* from) { return __bfloat162float(*from); }
__device__ inline void store_one(float* to, float value) { *to = value; }
__device__ inline void store_one(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }
// Rounds a value as a store to Element does.
template <typename Element>
__device__ float rounded_to(float value) {
  if constexpr (std::is_same_v<Element, float>) {
    return value;
  } else {
    return __bfloat162float(__float2bfloat16_rn(value));
  }
}

// Whether `width` elements from `at` on may be accessed at once, in accesses of up to 16 bytes.
template <int width, typename Element>
__device__ bool aligned(const Element* at) {
  constexpr unsigned bytes = width * sizeof(Element) < 16 ? width * sizeof(Element) : 16;
  return reinterpret_cast<uintptr_t>(at) % bytes == 0;
}

// Returns the sum over a warp's threads, in a fixed order, in each of them.
__device__ inline float warp_sum(float sum) {
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, mask);
  return sum;
}

// Returns the sum over a block's threads, in a fixed order, in every thread. A block uses `warp_sums`, in
// shared memory, once.
template <int warps>
__device__ float block_sum(float sum, float (&warp_sums)[warps]) {
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (const float part : warp_sums) sum += part;
  return sum;
}

}  // namespace nlac::cuda
