// Many tensors in one launch: their addresses travel as arguments of the kernel, and each block works on a
// tile of one of them. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace nlac::cuda {

constexpr int threads = 256;    // of a block
constexpr int64_t tile = 8192;  // elements a block works through; a multiple of every vector's width

template <typename Tensor>
struct Batch {
  // A launch takes 32764 bytes of arguments; the rest is for what else a kernel is told.
  static constexpr int capacity = static_cast<int>(32512 / (sizeof(Tensor) + sizeof(unsigned)));
  Tensor tensors[capacity];
  unsigned first_block[capacity];  // the block at which a tensor starts
  int count;
};

// A block's tensor, and its elements there.
struct Share {
  int tensor;
  int64_t begin, end;
};

template <typename Tensor>
__device__ Share share_of(const Batch<Tensor>& batch) {
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
  const int64_t begin = static_cast<int64_t>(blockIdx.x - batch.first_block[low]) * tile;
  const int64_t count = batch.tensors[low].count;
  return {low, begin, begin + tile < count ? begin + tile : count};
}

// Calls launch(batch, blocks) for all tensors, as many at a time as fit.
template <typename Tensor, typename Launch>
cudaError_t each_batch(const Tensor* tensors, int64_t count, const Launch& launch) {
  static_assert(sizeof(Batch<Tensor>) <= 32764 - 192);
  for (int64_t first = 0; first < count; first += Batch<Tensor>::capacity) {
    Batch<Tensor> batch{};
    batch.count = static_cast<int>(std::min<int64_t>(Batch<Tensor>::capacity, count - first));
    int64_t blocks = 0;
    for (int i = 0; i < batch.count; ++i) {
      batch.tensors[i] = tensors[first + i];
      batch.first_block[i] = static_cast<unsigned>(blocks);
      blocks += (batch.tensors[i].count + tile - 1) / tile;
    }
    if (blocks == 0) continue;
    if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    launch(batch, static_cast<unsigned>(blocks));
    const cudaError_t launched = cudaGetLastError();
    if (launched != cudaSuccess) return launched;
  }
  return cudaSuccess;
}

// --- elements ------------------------------------------------------------------------------------------

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

// To nearest.
__device__ inline void store(__nv_bfloat16* to, const Values<4>& v) {
  const __nv_bfloat162 halves[2] = {__floats2bfloat162_rn(v.of[0], v.of[1]),
                                    __floats2bfloat162_rn(v.of[2], v.of[3])};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(halves);
}

__device__ inline float one(const float* from) { return *from; }
__device__ inline float one(const __nv_bfloat16* from) { return __bfloat162float(*from); }

// Whether `width` elements from `at` on may be accessed at once. Tiles start at multiples of every width, so
// the tensors' own addresses decide.
template <int width, typename Element>
__device__ bool aligned(const Element* at) {
  constexpr unsigned bytes = width * sizeof(Element) < 16 ? width * sizeof(Element) : 16;
  return reinterpret_cast<uintptr_t>(at) % bytes == 0;
}

}  // namespace nlac::cuda
