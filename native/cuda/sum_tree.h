// The sum tree of core/replay/sum_tree.h on a GPU. Plain device pointers, no torch. The arithmetic
// is the same (core/replay/sum_tree_math.h), so the same priorities and random numbers give the
// same bits as on the CPU.
//
// The caller owns all memory, which must be zeroed before the first call. Calls are asynchronous on
// `stream`; a tree belongs to one stream at a time. No call waits for the device.
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

// Two launches, none for count 0. `indices` [count] in [0, capacity), `priorities` [count] that a
// tree of this alpha can sum, on the device. The last of several entries for a leaf wins. count <
// 2^31.
cudaError_t sum_tree_set(const SumTreeView& tree, const int32_t* indices, const float* priorities,
                         int64_t count, cudaStream_t stream);

// One launch: draws `first_draw` … `first_draw + count - 1` of the seed's sequence. `indices`,
// `probabilities` and `weights` [count] as PriorityTree::sample gives them. A tree without a
// positive leaf gives -1, 0, 0.
cudaError_t sum_tree_sample(const SumTreeView& tree, uint64_t seed, uint64_t first_draw, int64_t count,
                            bool stratified, int32_t* indices, float* probabilities, float* weights,
                            cudaStream_t stream);

// One launch: `priorities` [count] as they were set, for `indices` [count] in [0, capacity).
cudaError_t sum_tree_get(const SumTreeView& tree, const int32_t* indices, float* priorities, int64_t count,
                         cudaStream_t stream);

}  // namespace nlac::cuda
