// The sum tree of core/replay/sum_tree.h in a GPU's memory: plain pointers, no torch. Same arithmetic
// (core/replay/sum_tree_math.h), so the same priorities and random numbers give the same bits as on the CPU.
//
// All memory is the caller's, on the device, zeroed once before the first call. Calls are asynchronous on
// `stream`; a tree belongs to one stream at a time. Nothing here waits for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/replay/sum_tree_math.h"

namespace nlac::cuda {

struct SumTreeView {
  int64_t capacity;
  double alpha, beta;
  TreeMemory memory;
};

// Two launches, none for count 0. `indices` [count] in [0, capacity), `priorities` [count] that a tree of
// this alpha can add up, on the device; of several entries for one leaf the last wins. count < 2^31.
cudaError_t sum_tree_set(const SumTreeView& tree, const int32_t* indices, const float* priorities,
                         int64_t count, cudaStream_t stream);

// One launch: draws `first_draw` … `first_draw + count - 1` of the seed's sequence. `indices`,
// `probabilities` and `weights` [count] as PriorityTree::sample gives them. A tree without a positive leaf
// gives -1, 0, 0.
cudaError_t sum_tree_sample(const SumTreeView& tree, uint64_t seed, uint64_t first_draw, int64_t count,
                            bool stratified, int32_t* indices, float* probabilities, float* weights,
                            cudaStream_t stream);

// One launch: `priorities` [count] as they were set, for `indices` [count] in [0, capacity).
cudaError_t sum_tree_get(const SumTreeView& tree, const int32_t* indices, float* priorities, int64_t count,
                         cudaStream_t stream);

}  // namespace nlac::cuda
