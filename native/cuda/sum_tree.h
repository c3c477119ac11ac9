// The sum tree of core/replay/sum_tree.h in a GPU's memory: plain pointers, no torch. Same arithmetic
// (core/replay/sum_tree_math.h), so the same priorities and random numbers give the same leaves as on the
// CPU; only p^alpha may differ in its last digit, the two pow() being different.
//
// All memory is the caller's, on the device, zeroed once before the first call. Calls are asynchronous on
// `stream`; a tree belongs to one stream at a time. Nothing here waits for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/replay/sum_tree_math.h"

namespace nlac::cuda {

enum SumTreeFault : int { none = 0, bad_index = 1, bad_priority = 2, empty = 3 };

struct SumTreeView {
  int64_t capacity;
  double alpha, beta;
  TreeMemory memory;  // `least` is null when beta is 0
  // One SumTreeFault. Once it is not `none`, sets write nothing until the caller has read and cleared it.
  int* fault;
};

// Two launches. `indices` [count], `priorities` [count], on the device; of several entries for one leaf the
// last wins. An entry out of range or not finite and ≥ 0 sets the fault, and nothing is written. count < 2^32
// - 1.
cudaError_t sum_tree_set(const SumTreeView& tree, const int64_t* indices, const float* priorities,
                         int64_t count, cudaStream_t stream);

// One launch: draws `first_draw` … `first_draw + count - 1` of the seed's sequence. `indices`,
// `probabilities` and `weights` [count] as SumTree::sample gives them. A tree without a positive leaf gives
// -1, 0, 0 and sets the fault.
cudaError_t sum_tree_sample(const SumTreeView& tree, uint64_t seed, uint64_t first_draw, int64_t count,
                            bool stratified, int64_t* indices, float* probabilities, float* weights,
                            cudaStream_t stream);

}  // namespace nlac::cuda
