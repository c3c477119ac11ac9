// The priority tree in a GPU's memory. Only entries and draws cross between host and device. Uses
// the CUDA runtime alone. Not movable, not copyable: it owns its memory and its stream. Besides the
// errors of PriorityTree, every method throws ERR_DEVICE and ERR_OUT_OF_MEMORY. CUDA builds only.
#pragma once

#ifdef NLAC_CUDA

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/replay/priority_tree.h"
#include "core/replay/tree_file.h"
#include "cuda/sum_tree.h"

namespace nlac {

class CudaSumTree final : public PriorityTree {
 public:
  // On CUDA device number `device`. Throws ERR_VALUE too.
  CudaSumTree(const TreeOptions& options, int device);
  // From a file's contents.
  CudaSumTree(TreeState state, int device);
  ~CudaSumTree() override;
  CudaSumTree(const CudaSumTree&) = delete;

  void set(const int32_t* indices, const float* priorities, int64_t count) override;
  void get(const int32_t* indices, float* priorities, int64_t count) override;
  double total() override;
  float min() override;
  float max() override;
  void sample(int64_t count, bool stratified, int32_t* indices, float* probabilities,
              float* weights) override;
  void save(const std::string& path) override;
  int64_t host_bytes() const override;

 private:
  class Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace nlac

#endif
