// Prioritized sampling: leaf i is drawn with probability p_i^alpha / Σ p_j^alpha (Schaul et al., 2016,
// "Prioritized Experience Replay", eq. 1). Needs no torch. Thread rule: one thread at a time.
// Movable, not copyable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/replay/sum_tree_math.h"
#include "core/replay/zeroed_memory.h"

namespace nlac {

class SumTree {
 public:
  // capacity in [1, 2^27]; alpha ≥ 0; beta in [0, 1] shapes the importance weights. Throws ERR_VALUE.
  SumTree(int64_t capacity, double alpha, double beta, uint64_t seed);

  int64_t capacity() const { return capacity_; }
  // Sets raw priorities (not yet raised to alpha). Duplicate indices: the last one wins. All are checked
  // before any is written: ERR_INDEX for one out of range, ERR_PRIORITY for NaN, infinite, negative, or too
  // large once raised to alpha.
  void set(const int64_t* indices, const float* priorities, int64_t count);
  // Raw priorities as set; 0 for a leaf never set. Throws ERR_INDEX.
  void get(const int64_t* indices, float* priorities, int64_t count) const;
  // Σ p^alpha: equal to the exact sum to 1e-9 relative after any number of updates.
  double total() const;
  // `count` independent draws (with replacement). `weights[i]` = (n·P(i))^-beta / max over the leaves in
  // use, n the number of leaves with positive priority; 1 when beta = 0. Throws ERR_EMPTY when total is 0.
  // A leaf of priority 0 is never drawn. Draw number d of this tree is a function of (seed, d) and the
  // priorities alone.
  void sample(int64_t count, bool stratified, int64_t* indices, float* probabilities, float* weights);

  // Everything (priorities, alpha, beta, seed, draw counter) in one checked file, written atomically; load
  // throws ERR_IO, ERR_CHECKPOINT. A loaded tree continues the same random sequence.
  void save(const std::string& path) const;
  static SumTree load(const std::string& path);

  double alpha() const { return alpha_; }
  double beta() const { return beta_; }
  uint64_t draws() const { return draws_; }

 private:
  double mass(float priority) const;
  void write_leaves(const int64_t* indices, const float* priorities, int64_t count);
  void update_parents(const int64_t* indices, int64_t count);
  void rebuild();

  int64_t capacity_;
  double alpha_, beta_;
  uint64_t seed_, draws_ = 0;
  TreeShape shape_;
  ZeroedMemory<float> raw_;    // [capacity]
  ZeroedMemory<double> tree_;  // p^alpha and the sums over it, as sum_tree_math.h lays them out
  ZeroedMemory<double> least_;  // least positive mass under each inner node; empty when beta is 0
  // Working memory of set(), kept between calls.
  std::vector<double> masses_;
  std::vector<int64_t> nodes_;
  std::vector<uint64_t> marks_;  // one bit a node of a level; all 0 between calls
};

}  // namespace nlac
