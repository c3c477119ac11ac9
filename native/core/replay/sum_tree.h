// The priority tree in the CPU's memory. set() writes priorities and remembers which; the sums over them are
// brought up to date once, by the next total() or sample(), however many sets came before it. Movable, not
// copyable.
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
  // What a file held.
  explicit SumTree(TreeState state, const tree_kernels::Kernels& kernels = tree_kernels::kernels());

  void set(const int32_t* indices, const float* priorities, int64_t count) override;
  void get(const int32_t* indices, float* priorities, int64_t count) override;
  double total() override;
  void sample(int64_t count, bool stratified, int32_t* indices, float* probabilities,
              float* weights) override;
  void save(const std::string& path) override;
  int64_t host_bytes() const override;

 private:
  void refresh();

  const tree_kernels::Kernels* kernels_;
  TreeShape shape_;
  ZeroedMemory<float> raw_;      // [capacity]
  ZeroedMemory<double> tree_;    // p^alpha and the sums over it, as sum_tree_math.h lays them out
  ZeroedMemory<double> starts_;  // where each inner node starts among its siblings
  ZeroedMemory<double> least_;   // least positive mass under each inner node; empty when beta is 0
  // Leaves written since the last refresh, some perhaps twice; refresh() works in its memory.
  std::vector<int32_t> changed_;
  std::vector<uint64_t> marks_;  // one bit a node of a level; all 0 between refreshes
};

}  // namespace nlac
