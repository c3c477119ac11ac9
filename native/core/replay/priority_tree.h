// Prioritized sampling: leaf i is drawn with probability p_i^alpha / Σ p_j^alpha (Schaul et al.,
// 2016, "Prioritized Experience Replay", eq. 1). The interface of SumTree (CPU) and CudaSumTree
// (GPU). The same seed and sets give the same draws on both, bit for bit. No torch. Thread rule:
// one thread at a time.
#pragma once

#include <cstdint>
#include <string>

namespace nlac {

struct TreeOptions {
  int64_t capacity;    // leaves, in [1, 2^27]
  double alpha, beta;  // alpha ≥ 0; beta in [0, 1] shapes the importance weights
  uint64_t seed;
};

// Throws ERR_VALUE for an option out of range.
void require_options(const TreeOptions& options);
// Returns the largest priority that a tree of this alpha can sum.
float largest_priority(double alpha);

class PriorityTree {
 public:
  virtual ~PriorityTree() = default;

  int64_t capacity() const { return options_.capacity; }
  double alpha() const { return options_.alpha; }
  double beta() const { return options_.beta; }
  uint64_t draws() const { return draws_; }

  // Sets raw priorities (not yet raised to alpha). Duplicate indices: the last one wins. All are
  // checked before any is written: ERR_INDEX for one out of range, ERR_PRIORITY for NaN, infinite,
  // negative, or too large once raised to alpha.
  virtual void set(const int32_t* indices, const float* priorities, int64_t count) = 0;
  // Raw priorities as set; 0 for a leaf never set. Throws ERR_INDEX.
  virtual void get(const int32_t* indices, float* priorities, int64_t count) = 0;
  // Σ p^alpha: equal to the exact sum to 1e-9 relative after any number of updates.
  virtual double total() = 0;
  // The least positive and the largest current priority, as set; 0 if none is positive.
  virtual float min() = 0;
  virtual float max() = 0;
  // `count` independent draws (with replacement), or stratified ones: one from each of `count`
  // equal parts of the total. `probabilities[i]` is P(i), `weights[i]` = (n·P(i))^-beta / max over
  // the leaves in use, n the number of leaves with positive priority; 1 when beta = 0. Throws
  // ERR_EMPTY when total is 0. A leaf of priority 0 is never drawn. Draw number d of this tree is a
  // function of (seed, d) and the priorities alone.
  virtual void sample(int64_t count, bool stratified, int32_t* indices, float* probabilities,
                      float* weights) = 0;
  // Everything (priorities, options, draw counter) in one checked file, written atomically. A
  // loaded tree continues the same random sequence. Throws ERR_IO.
  virtual void save(const std::string& path) = 0;
  // Returns the host memory in bytes when every leaf is in use.
  virtual int64_t host_bytes() const = 0;

 protected:
  PriorityTree(const TreeOptions& options, uint64_t draws);
  PriorityTree(PriorityTree&&) = default;
  PriorityTree& operator=(PriorityTree&&) = default;

  // Throw as set() and get() do.
  void require_entries(const int32_t* indices, const float* priorities, int64_t count) const;
  void require_indices(const int32_t* indices, int64_t count) const;

  TreeOptions options_;
  uint64_t draws_;
  float largest_;  // priority

 private:
  void require_index(const int32_t* indices, int64_t i) const;
};

}  // namespace nlac
