// The priority tree in the CPU's memory. set() writes priorities and marks them; the next call that
// needs sums and extremes updates them once, for all sets before it. Movable, not copyable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/replay/priority_tree.h"
#include "core/replay/sum_tree_kernels.h"
#include "core/replay/tree_file.h"
#include "core/replay/zeroed_memory.h"

namespace nlac {

class SumTree final : public PriorityTree {
 public:
  // Throws ERR_VALUE.
  explicit SumTree(const TreeOptions& options,
                   const tree_kernels::Kernels& kernels = tree_kernels::kernels());
  // From a file's contents.
  explicit SumTree(TreeState state, const tree_kernels::Kernels& kernels = tree_kernels::kernels());

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
  void refresh();           // the sums
  void refresh_extremes();  // the sums too

  const tree_kernels::Kernels* kernels_;
  TreeShape shape_;
  ZeroedMemory<float> raw_;        // [capacity], padded to whole nodes
  ZeroedMemory<double> tree_;      // p^alpha and the sums over it, as sum_tree_math.h lays them out
  ZeroedMemory<double> starts_;    // where each inner node starts among its siblings
  ZeroedMemory<float> min_, max_;  // the least positive and the largest priority under each inner node
  double least_ = 0;               // the mass of the least positive priority; 0 when beta is
  // Leaves written since the last refresh, some perhaps twice; refresh() works in its memory.
  std::vector<int32_t> changed_;
  // Nodes just above the leaves whose extremes are behind, some perhaps twice; as many as there
  // are: all.
  std::vector<int32_t> stale_;
  std::vector<uint64_t> marks_;  // one bit a node of a level; all 0 between refreshes
};

}  // namespace nlac
