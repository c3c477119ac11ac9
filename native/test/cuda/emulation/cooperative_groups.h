// Blocks and clusters as cooperative groups, as far as the kernels use them.
#pragma once

#include "device.h"

namespace cooperative_groups {

class thread_block {
 public:
  void sync(std::source_location where = std::source_location::current()) const { __syncthreads(where); }
  unsigned thread_rank() const { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
  unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
};
inline thread_block this_thread_block() { return {}; }

class cluster_group {
 public:
  unsigned num_blocks() const { return emulated::cluster_size(); }
  unsigned block_rank() const { return emulated::cluster_rank(); }
  void sync(std::source_location where = std::source_location::current()) const {
    emulated::sync_cluster(where);
  }
  // The address in the block of that rank that corresponds to `own` in this block.
  template <typename T>
  T* map_shared_rank(T* own, unsigned rank,
                     std::source_location where = std::source_location::current()) const {
    return static_cast<T*>(emulated::shared_of_rank(own, rank, where));
  }
};
inline cluster_group this_cluster() { return {}; }

}  // namespace cooperative_groups
