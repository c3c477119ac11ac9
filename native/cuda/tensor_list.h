// Many tensors in one launch: their addresses are kernel arguments, and each block processes a tile
// of one tensor. Included by .cu files only.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/elements.h"

namespace nlac::cuda {

constexpr int threads = 256;    // of a block
constexpr int64_t tile = 8192;  // elements a block works through; a multiple of every vector's width

template <typename Tensor>
struct Batch {
  // A launch takes 32764 bytes of arguments; the rest is for other arguments.
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
  // The last tensor that starts at this block or before: empty ones share their start with the
  // next.
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

}  // namespace nlac::cuda
